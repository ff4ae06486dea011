"""Top-KAST (Jayakumar et al., NeurIPS 2020)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass
from functools import cached_property
from typing import Any, Literal

import torch

from topkast.core.anneal import Course, Schedule, schedule_from, take_schedule
from topkast.core.floor import Floor, Grid, top, top_within
from topkast.core.moment import Moment
from topkast.core.schedule import check_amount, check_count, check_share, check_steps
from topkast.core.select import random_outside, top_together, within_together
from topkast.core.sets import Counts, Sets
from topkast.core.steps import decay_
from topkast.core.weight import SparseWeight
from topkast.methods.base import Method

# Steps from one exchange to the next, by default.
_EXCHANGE = 100
UNDER_ADAM: Mapping[str, Any] = {"exploration_rate": 0.1, "decay": 0.3}
"""Settings for optimizers that divide each gradient by its own size, as Adam does; docs/method.md has why."""


@dataclass(frozen=True)
class TopKAST(Method):
    """Top-K Always Sparse Training, with two clocks.

    A = TopK(θ, D) is used in the forward pass and for the input gradient; B = TopK(θ, D+M) ⊇ A receives
    the weight gradient. A *refresh* chooses A within B: a pass over |B| numbers. An *exchange* chooses both
    from all of θ: elements enter B and leave it. The paper's settings are (1, 1) and (100, 100).

    Between exchanges C does not move. If the least magnitude in A falls to the largest in C, an exchange
    happens at once, so that A is TopK(θ, D) after every refresh, and only B lags.

    Example:
        >>> method = TopKAST(forward_sparsity=0.9, backward_sparsity=0.8)
        >>> method.refresh_every, method.exchange_every
        (1, 100)

    Attributes:
        forward_sparsity: 1 - D; or a schedule of it, `topkast.Anneal` or `topkast.Stages`. Afterwards this is
            the final one, and `forward_schedule` is the schedule. Sizes change at exchanges: those of the
            clock, and one at each stage and at the end of annealing.
        backward_sparsity: 1 - D - M, or a schedule of it.
        refresh_every: Steps from one refresh to the next, 1 by default. With ``scope="global"`` A is chosen
            at exchanges only.
        exchange_every: Steps from one exchange to the next, a multiple of `refresh_every`. By default the
            first multiple that is at least 100.
        exploration: How B∖A is chosen: "magnitude", the next largest |θ|; or "random", uniformly from
            the rest (the paper's ablation). Between exchanges A is then the Top-K of B, not of θ: C may
            hold larger ones, and no exchange comes early.
        explore_until: Step t from which only A is updated ("Top-KAST (t)" in the paper's Table 1). A is
            still the Top-K of all of θ; what is outside A keeps its value. None explores to the end.
        exploration_rate: Factor on the steps of B∖A, from 0 to 1: θ ← θ_before + rate·(θ - θ_before) after
            each optimizer step. 1 is the paper's letter. Under Adam noise moves B∖A by a learning rate per
            step; a smaller factor keeps it from walking into A.
        exploration_warmup: Steps in which that factor rises from 0 along a line; 0 for none.
        decay: λ of the penalty, decoupled from the gradient as AdamW decouples weight decay. After each step
            θ ← θ - lr·λ·θ on A and θ ← θ - lr·(λ/D)·θ on B∖A, with the learning rate of the weight's group.
            It stands in place of ``λ * sparse.penalty()`` in the loss, whose gradient Adam normalises.
        hysteresis: How many times as large as a member of A a challenger must be to take its place, at least
            1. A and B are then the Top-K of s·|θ|, with s = hysteresis for present members of A, 1 elsewhere.
        min_fan_in: How many elements of A each output (neuron, channel, row of an embedding) keeps at least:
            its largest, whatever their rank. The rest is Top-K, and |A| is exact. 0 for none.
        min_fan_out: The same for each input (feature, channel).
        scope: "layer": Top-K within each layer, as in the paper's experiments. "global": Top-K over all
            layers together, so that budgets move between them; each keeps at least one element.
        forward_schedule: Taken from `forward_sparsity`; None where that is a number.
        backward_schedule: Likewise.
    """

    forward_sparsity: Any  # a number once it is made
    backward_sparsity: Any
    _: KW_ONLY
    refresh_every: int = None  # pyright: ignore[reportAssignmentType]  (known once it is made)
    exchange_every: int = None  # pyright: ignore[reportAssignmentType]
    exploration: Literal["magnitude", "random"] = "magnitude"
    explore_until: int | None = None
    exploration_rate: float = 1.0
    exploration_warmup: int = 0
    decay: float = 0.0
    hysteresis: float = 1.0
    min_fan_in: int = 0
    min_fan_out: int = 0
    scope: Literal["layer", "global"] = "layer"
    forward_schedule: Schedule | None = None
    backward_schedule: Schedule | None = None

    def __post_init__(self) -> None:
        for side in ("forward", "backward"):
            take_schedule(self, f"{side}_sparsity", f"{side}_schedule")
        super().__post_init__()
        self._set_clocks()
        self._course.check()
        if self.explore_until is not None:
            check_steps("`explore_until`", self.explore_until, at_least=0)
        check_share("`exploration_rate`", self.exploration_rate)
        check_steps("`exploration_warmup`", self.exploration_warmup, at_least=0)
        check_amount("`decay`", self.decay)
        check_amount("`hysteresis`", self.hysteresis, at_least=1)
        if self.exploration not in ("magnitude", "random"):
            raise ValueError(f"`exploration` must be 'magnitude' or 'random', got {self.exploration!r}")
        if self.scope not in ("layer", "global"):
            raise ValueError(f"`scope` must be 'layer' or 'global', got {self.scope!r}")
        check_count("`min_fan_in`", self.min_fan_in)
        check_count("`min_fan_out`", self.min_fan_out)
        if self.scope == "global" and (self.min_fan_in or self.min_fan_out):
            raise ValueError(
                "`min_fan_in` and `min_fan_out` need `scope='layer'`: with `scope='global'` a layer has no "
                "size of its own that its floors could be counted against"
            )
        if self.scope == "global" and self.exploration == "random":
            raise ValueError("`exploration='random'` needs `scope='layer'`: a layer explores within itself")

    def _set_clocks(self) -> None:
        """Fills in the defaults and checks that the one is a multiple of the other."""
        refresh, exchange = self.refresh_every, self.exchange_every
        for name, steps in (("`refresh_every`", refresh), ("`exchange_every`", exchange)):
            if steps is not None:
                check_steps(name, steps, at_least=1)
        if self.scope == "global":  # both are one, unless somebody says otherwise
            refresh, exchange = refresh or exchange or _EXCHANGE, exchange or refresh
        refresh = refresh or 1
        exchange = exchange or -(-_EXCHANGE // refresh) * refresh
        if exchange % refresh:
            raise ValueError(
                f"`exchange_every` must be a multiple of `refresh_every` ({refresh}), got {exchange}: an "
                "exchange chooses A too"
            )
        if self.scope == "global" and refresh != exchange:
            raise ValueError(
                "`scope='global'` chooses A at exchanges only, since budgets move between layers: leave "
                f"`refresh_every` out, or make it equal to `exchange_every` ({exchange}), got {refresh}"
            )
        object.__setattr__(self, "refresh_every", refresh)
        object.__setattr__(self, "exchange_every", exchange)

    @classmethod
    def from_settings(cls, settings: Mapping[str, Any]) -> TopKAST:
        """From what a file says. Up to version 0.1 there was one clock."""
        if "refresh_every" in settings and "exchange_every" not in settings:
            settings = {**settings, "exchange_every": settings["refresh_every"]}
        found = {n: settings.get(n) for n in ("forward_schedule", "backward_schedule")}
        schedules = {n: schedule_from(data) for n, data in found.items() if data is not None}
        return cls(**{**settings, **schedules})

    def __setstate__(self, state: dict[str, Any]) -> None:
        # A pickle of version 0.1 has one clock.
        one_clock = {} if "exchange_every" in state else {"exchange_every": state["refresh_every"]}
        for name, value in (state | one_clock).items():
            object.__setattr__(self, name, value)

    @cached_property
    def _course(self) -> Course:
        finals = (self.forward_sparsity, self.backward_sparsity)
        return Course(self.forward_schedule, self.backward_schedule, finals, self.exchange_every)

    @property
    def has_schedule(self) -> bool:
        """Whether a sparsity depends on the step."""
        return self.forward_schedule is not None or self.backward_schedule is not None

    def sizes(self, step: int, counts: Counts) -> Counts:
        return self._course.at(step, counts) if self.has_schedule else counts

    def turns(self) -> tuple[int, ...]:
        return (0, *self._course.knots)

    def last_step(self) -> int | None:
        return self._course.end if self.has_schedule else None

    @classmethod
    def under_adam(cls, forward_sparsity: Any, backward_sparsity: Any, **settings: Any) -> TopKAST:
        """With the settings that suit Adam and its like, and no penalty in the loss; others as given.

        Example:
            >>> TopKAST.under_adam(0.9, 0.8).exploration_rate
            0.1
        """
        return cls(forward_sparsity, backward_sparsity, **{**UNDER_ADAM, **settings})

    def exploration_end(self) -> int | None:
        return self.explore_until

    def exploration_factor(self, step: int) -> float:
        """rate·min(1, t/warm-up), where t steps were taken before this one."""
        taken, warmup = step - 1, self.exploration_warmup
        return self.exploration_rate * (taken / warmup if taken < warmup else 1.0)

    def is_due(self, step: int) -> bool:
        return step % self.exchange_every == 0 or (self.has_schedule and step in self._course.knots)

    def refreshes_after(self, step: int) -> bool:
        return self.has_two_clocks and step % self.refresh_every == 0

    @property
    def has_two_clocks(self) -> bool:
        return self.refresh_every < self.exchange_every

    @property
    def keeps_top(self) -> bool:
        return self.exploration == "magnitude"

    def floor(self, grid: Grid) -> Floor | None:
        return grid.floor(self.min_fan_in, self.min_fan_out)

    @property
    def advantage(self) -> float:
        return self.hysteresis

    @property
    def has_penalty(self) -> bool:
        return True

    @property
    def applies_penalty(self) -> bool:
        return self.decay > 0

    @property
    def acts_after_steps(self) -> bool:
        return self.applies_penalty

    def after_step(self, weight: SparseWeight, lr: float) -> None:
        """The decoupled penalty. What was frozen in this step does not decay either."""
        explored = self.explore_until is None or weight.steps <= self.explore_until
        share = lr * self.decay
        decay_(weight, share, share / weight.counts.forward_density if explored else 0.0)

    @property
    def is_global(self) -> bool:
        return self.scope == "global"

    @property
    def resizes(self) -> bool:
        return self.is_global or self.has_schedule

    @property
    def plans_sizes(self) -> bool:
        return not self.is_global

    def choose(self, moment: Moment) -> Sets:
        theta, counts = moment.theta, self.sizes(moment.step, moment.counts)
        floor = None if moment.grid is None else self.floor(moment.grid)
        if floor is not None:
            floor.check(counts)
        if self.exploration == "random":
            forward = top(theta, counts.forward, floor)
            extra = random_outside(counts.numel, counts.backward - counts.forward, forward, moment.generator)
            backward = torch.cat([forward, extra.to(forward.device)]).sort().values
            return Sets.from_positions(forward, backward)
        backward = top(theta, counts.backward, floor)
        # A ⊆ B holds because both follow one order, so A is found within B.
        within = top_within(theta.at(backward), backward, counts.forward, floor)
        return Sets.from_slots(within, backward)

    def choose_together(self, moments: Mapping[str, Moment]) -> dict[str, Sets]:
        counts = [self.sizes(m.step, m.counts) for m in moments.values()]
        thetas = [m.theta for m in moments.values()]
        backward = top_together(thetas, [c.backward for c in counts])
        magnitudes = [theta.at(b) for theta, b in zip(thetas, backward, strict=True)]
        forward = within_together(magnitudes, sum(c.forward for c in counts))
        chosen = zip(moments, forward, backward, strict=True)
        return {name: Sets.from_slots(slots, positions) for name, slots, positions in chosen}

    def densities(self, step: int, counts: Counts) -> tuple[float, float]:
        explores = self.explore_until is None or step <= self.explore_until
        forward, backward = super().densities(step, counts)
        return forward, backward if explores else forward
