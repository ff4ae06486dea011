"""Top-KAST (Jayakumar et al., NeurIPS 2020)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass
from typing import Literal

import torch

from topkast.core.moment import Moment
from topkast.core.schedule import check_steps
from topkast.core.select import random_outside, top_k, top_together, within_together
from topkast.core.sets import Counts, Sets
from topkast.methods.base import Method


@dataclass(frozen=True)
class TopKAST(Method):
    """Top-K Always Sparse Training.

    A = TopK(θ, D) is used in the forward pass and for the input gradient; B = TopK(θ, D+M) ⊇ A receives
    the weight gradient; both are chosen anew every N steps.

    Example:
        >>> TopKAST(forward_sparsity=0.9, backward_sparsity=0.8).refresh_every
        100

    Attributes:
        forward_sparsity: 1 - D.
        backward_sparsity: 1 - D - M.
        refresh_every: N. The paper finds 100 as good as 1 (its appendix on implementation).
        exploration: How B∖A is chosen: "magnitude", the next largest |θ|; or "random", uniformly from
            the rest (the paper's ablation).
        explore_until: Step t from which only A is updated ("Top-KAST (t)" in the paper's Table 1). A is
            still the Top-K of all of θ; what is outside A keeps its value. None explores to the end.
        scope: "layer": Top-K within each layer, as in the paper's experiments. "global": Top-K over all
            layers together, so that budgets move between them; each keeps at least one element.
    """

    forward_sparsity: float
    backward_sparsity: float
    _: KW_ONLY
    refresh_every: int = 100
    exploration: Literal["magnitude", "random"] = "magnitude"
    explore_until: int | None = None
    scope: Literal["layer", "global"] = "layer"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_steps("`refresh_every`", self.refresh_every, at_least=1)
        if self.explore_until is not None:
            check_steps("`explore_until`", self.explore_until, at_least=0)
        if self.exploration not in ("magnitude", "random"):
            raise ValueError(f"`exploration` must be 'magnitude' or 'random', got {self.exploration!r}")
        if self.scope not in ("layer", "global"):
            raise ValueError(f"`scope` must be 'layer' or 'global', got {self.scope!r}")
        if self.scope == "global" and self.exploration == "random":
            raise ValueError("`exploration='random'` needs `scope='layer'`: a layer explores within itself")

    def exploration_end(self) -> int | None:
        return self.explore_until

    def is_due(self, step: int) -> bool:
        return step % self.refresh_every == 0

    @property
    def has_penalty(self) -> bool:
        return True

    @property
    def is_global(self) -> bool:
        return self.scope == "global"

    @property
    def resizes(self) -> bool:
        return self.is_global

    def choose(self, moment: Moment) -> Sets:
        theta, counts = moment.theta, moment.counts
        if self.exploration == "random":
            forward = theta.top(counts.forward)
            extra = random_outside(counts.numel, counts.backward - counts.forward, forward, moment.generator)
            backward = torch.cat([forward, extra.to(forward.device)]).sort().values
            return Sets.from_positions(forward, backward)
        backward = theta.top(counts.backward)
        # A ⊆ B holds because both follow one order, so A is found within B.
        within = top_k(theta.at(backward), counts.forward)
        return Sets.from_slots(within, backward)

    def choose_together(self, moments: Mapping[str, Moment]) -> dict[str, Sets]:
        counts = [m.counts for m in moments.values()]
        thetas = [m.theta for m in moments.values()]
        backward = top_together(thetas, [c.backward for c in counts])
        magnitudes = [theta.at(b) for theta, b in zip(thetas, backward, strict=True)]
        forward = within_together(magnitudes, sum(c.forward for c in counts))
        chosen = zip(moments, forward, backward, strict=True)
        return {name: Sets.from_slots(slots, positions) for name, slots, positions in chosen}

    def densities(self, step: int, counts: Counts) -> tuple[float, float]:
        explores = self.explore_until is None or step <= self.explore_until
        return counts.forward_density, counts.backward_density if explores else counts.forward_density
