"""Gradual magnitude pruning (Zhu and Gupta, 2017)."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, field
from typing import Literal

import torch

from topkast.core.moment import Moment
from topkast.core.schedule import check_interval, check_steps, cubic
from topkast.core.sets import Counts, Sets
from topkast.methods.base import Method


@dataclass(frozen=True)
class Pruning(Method):
    """Dense at first; from `begin` to `end` A shrinks to the largest weights, on a cubic schedule.

        s(t) = s_f·(1 - (1 - (t - begin)/(end - begin))³)

    Attributes:
        forward_sparsity: s_f, the final one.
        begin: First step at which anything is pruned.
        end: Step at which the final sparsity is reached.
        update_every: Δt; the paper's range is 100 to 1000.
        updates: "active": what is pruned keeps its value, gets no gradient, and may come back should it be
            among the largest again, as in the paper. "all": it goes on being updated until `end`.
    """

    forward_sparsity: float
    backward_sparsity: float = field(init=False)
    _: KW_ONLY
    begin: int
    end: int
    update_every: int = 100
    updates: Literal["active", "all"] = "active"

    def __post_init__(self) -> None:
        object.__setattr__(self, "backward_sparsity", self.forward_sparsity)
        super().__post_init__()
        check_interval("`begin`", self.begin, "`end`", self.end)
        check_steps("`update_every`", self.update_every, at_least=1)
        if self.updates not in ("active", "all"):
            raise ValueError(f"`updates` must be 'active' or 'all', got {self.updates!r}")

    @property
    def resizes(self) -> bool:
        return True

    def is_due(self, step: int) -> bool:
        if not self.begin <= step <= self.end:
            return False
        return step == self.end or (step - self.begin) % self.update_every == 0

    def _last_update(self, step: int) -> int:
        """The last update at or before `step`; -1 if there was none."""
        if step < self.begin:
            return -1
        return self.end if step >= self.end else step - (step - self.begin) % self.update_every

    @property
    def plans_sizes(self) -> bool:
        return True

    def sizes(self, step: int, counts: Counts) -> Counts:
        last = self._last_update(step)
        final = 1.0 - counts.forward_density
        density = 1.0 - cubic(last, self.begin, self.end, 0.0, final)
        forward = counts.forward if last >= self.end else max(1, round(density * counts.numel))
        is_whole = self.updates == "all" and last < self.end
        return Counts(counts.numel, forward, counts.numel if is_whole else forward)

    def choose(self, moment: Moment) -> Sets:
        if moment.present is None:
            return Sets.of(torch.arange(moment.numel))
        sizes = self.sizes(moment.step, moment.counts)
        positions = moment.theta.top(sizes.forward)
        if sizes.backward == sizes.forward:
            return Sets.of(positions)
        return Sets.from_positions(positions, torch.arange(moment.numel, device=positions.device))

    def last_step(self) -> int:
        return self.end
