"""DSR: Dynamic Sparse Reparameterization (Mostafa and Wang, ICML 2019)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass

import torch
from torch import Tensor

from topkast.core.distribution import share_out
from topkast.core.moment import Moment
from topkast.core.schedule import check_fraction, check_steps
from topkast.core.select import random_outside, random_subset, top_k
from topkast.core.sets import Sets
from topkast.core.slots import Companion
from topkast.methods.base import OneSparsity


class Threshold(Companion):
    """H, the same for all layers; each keeps a copy."""

    height: Tensor

    def __init__(self, height: float) -> None:
        super().__init__()
        self.register_buffer("height", torch.tensor(height, dtype=torch.float64))


@dataclass(frozen=True)
class DSR(OneSparsity):
    """Prunes what is below a threshold H, the same for all layers, and grows as many at random.

    Layers grow in proportion to what they have left. Budgets move between layers; their sum stays.

    H is halved when more than (1 + δ)·N_p elements went, doubled when fewer than (1 - δ)·N_p did.

    Attributes:
        forward_sparsity: 1 - D, at the start of every layer and always of all together.
        target_fraction: N_p as a share of A. The paper's are near 0.01.
        threshold: H at the start. The paper's 0.001.
        tolerance: δ. The paper's 0.1.
        update_every: The paper goes from 100 to 800 steps in the course of a run.
    """

    _: KW_ONLY
    target_fraction: float = 0.01
    threshold: float = 1e-3
    tolerance: float = 0.1
    update_every: int = 100

    def __post_init__(self) -> None:
        super().__post_init__()
        check_fraction("`target_fraction`", self.target_fraction)
        check_fraction("`tolerance`", self.tolerance)
        check_steps("`update_every`", self.update_every, at_least=1)
        if not self.threshold > 0 or self.threshold == float("inf"):
            raise ValueError(f"`threshold` must be above 0 and finite, got {self.threshold!r}")

    @property
    def fetches(self) -> bool:
        return False

    @property
    def resizes(self) -> bool:
        return True

    @property
    def is_global(self) -> bool:
        return True

    def is_due(self, step: int) -> bool:
        return step % self.update_every == 0

    @property
    def companion_type(self) -> type[Companion]:
        return Threshold

    def companion(self, moment: Moment, sets: Sets, dtype: torch.dtype) -> Companion:
        return Threshold(self.threshold)

    def choose(self, moment: Moment) -> Sets:
        return Sets.of(random_subset(moment.numel, moment.counts.forward, moment.generator))

    def choose_together(self, moments: Mapping[str, Moment]) -> dict[str, Sets]:
        if any(moment.present is None for moment in moments.values()):  # the first sets
            return super().choose_together(moments)
        heights = [_threshold(m).height for m in moments.values()]
        kept = {name: _survivors(m, float(heights[0])) for name, m in moments.items()}
        total = sum(m.positions.numel() for m in moments.values())
        num_pruned = total - sum(k.numel() for k in kept.values())
        for height in heights:
            height.mul_(self._correction(num_pruned, self.target_fraction * total))
        room = [m.numel - kept[name].numel() for name, m in moments.items()]
        shares = share_out(num_pruned, [float(k.numel()) for k in kept.values()], room)
        chosen = {}
        for (name, m), share in zip(moments.items(), shares, strict=True):
            grown = random_outside(m.numel, share, kept[name], m.generator).to(kept[name])
            chosen[name] = Sets.of(torch.cat([kept[name], grown]).sort().values)
        return chosen

    def _correction(self, num_pruned: int, wanted: float) -> float:
        if num_pruned > (1 + self.tolerance) * wanted:
            return 0.5
        return 2.0 if num_pruned < (1 - self.tolerance) * wanted else 1.0


def _survivors(moment: Moment, height: float) -> Tensor:
    """Elements of A that are not below H; the largest one stays in any case."""
    positions = moment.positions
    values = moment.theta.at(positions)
    stays = values.abs() >= height
    stays[top_k(values, 1)] = True
    return positions[stays]


def _threshold(moment: Moment) -> Threshold:
    assert isinstance(moment.companion, Threshold)
    return moment.companion
