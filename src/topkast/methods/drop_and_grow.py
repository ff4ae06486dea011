"""What SET, RigL and SNFS share: drop the smallest of A, grow as many elsewhere."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import KW_ONLY, dataclass

import torch
from torch import Tensor

from topkast.core.moment import Moment
from topkast.core.schedule import check_fraction, check_steps
from topkast.core.select import random_subset, top_k
from topkast.core.sets import Sets
from topkast.methods.base import OneSparsity


@dataclass(frozen=True)
class DropAndGrow(OneSparsity):
    """A = B, random at first. Every ΔT steps the smallest f(t) of A leave, and as many others enter.

    What has left is forgotten. An element that is grown again in the same moment never left: it keeps its
    value.

    Attributes:
        forward_sparsity: 1 - D.
        drop_fraction: f, in [0, 1).
        update_every: ΔT.
    """

    _: KW_ONLY
    drop_fraction: float = 0.3
    update_every: int = 100

    def __post_init__(self) -> None:
        super().__post_init__()
        check_fraction("`drop_fraction`", self.drop_fraction)
        check_steps("`update_every`", self.update_every, at_least=1)

    @property
    def fetches(self) -> bool:
        return False

    def is_due(self, step: int) -> bool:
        return step % self.update_every == 0

    def fraction(self, step: int) -> float:
        """f(t)."""
        return self.drop_fraction

    @abstractmethod
    def grow(self, moment: Moment, kept: Tensor, count: int) -> Tensor:
        """Positions of `count` elements outside `kept`, increasing."""

    def fresh(self, moment: Moment, positions: Tensor) -> Tensor | None:
        """What elements start at that enter; None for zero."""
        return None

    def choose(self, moment: Moment) -> Sets:
        sets = moment.sets
        if sets is None:
            return Sets.of(random_subset(moment.numel, moment.counts.forward, moment.generator))
        kept = self.kept(moment, sets.indices)
        return self.grown(moment, kept, sets.indices.numel() - kept.numel())

    def kept(self, moment: Moment, positions: Tensor) -> Tensor:
        """The elements of A that are not dropped."""
        num_dropped = round(self.fraction(moment.step) * positions.numel())
        return positions[top_k(moment.theta.at(positions), positions.numel() - num_dropped)]

    def grown(self, moment: Moment, kept: Tensor, count: int) -> Sets:
        """The kept elements and `count` others."""
        positions = torch.cat([kept, self.grow(moment, kept, count).to(kept)]).sort().values
        return Sets.of(positions, self.fresh(moment, positions))
