"""`Sets`: a choice of A and B, and how many elements each has."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Counts:
    """|A| and |B| of a weight with `numel` elements. 1 ≤ forward ≤ backward ≤ numel."""

    numel: int
    forward: int
    backward: int

    @classmethod
    def from_density(cls, numel: int, forward: float, backward: float) -> Counts:
        """K_A = round(D·n) and K_B = round((D+M)·n), each at least 1 (halves round to even)."""
        num_forward = min(numel, max(1, round(forward * numel)))
        num_backward = min(numel, max(num_forward, round(backward * numel)))
        return cls(numel, num_forward, num_backward)

    @property
    def forward_density(self) -> float:
        """D, exactly as counted."""
        return self.forward / self.numel

    @property
    def backward_density(self) -> float:
        """D + M, exactly as counted."""
        return self.backward / self.numel


@dataclass(frozen=True)
class Sets:
    """A choice of B and A.

    Attributes:
        indices: Positions of B, increasing (int64).
        active: Which of them are in A (bool).
        fresh: Where the method decides it: the value of an element that enters B, one per element of B (those
            that stay keep theirs). None: what the reservoir knows of it.
        settles: Whether what the companion makes of the values becomes the values, for good, before the sets
            are taken.
    """

    indices: Tensor
    active: Tensor
    fresh: Tensor | None = None
    settles: bool = False

    @classmethod
    def from_positions(cls, forward: Tensor, backward: Tensor) -> Sets:
        """From the increasing positions of A and of B ⊇ A."""
        return cls.from_slots(torch.searchsorted(backward, forward), backward)

    @classmethod
    def from_slots(cls, forward: Tensor, backward: Tensor) -> Sets:
        """From the places of A within B, and the increasing positions of B."""
        active = torch.zeros(backward.numel(), dtype=torch.bool, device=backward.device)
        return cls(backward, active.index_fill_(0, forward, True))

    def to(self, device: torch.device) -> Sets:
        fresh = None if self.fresh is None else self.fresh.to(device)
        return Sets(self.indices.to(device), self.active.to(device), fresh, self.settles)

    @classmethod
    def of(cls, positions: Tensor, fresh: Tensor | None = None) -> Sets:
        """A = B, at increasing positions."""
        active = torch.ones(positions.numel(), dtype=torch.bool, device=positions.device)
        return cls(positions, active, fresh)

    @property
    def forward(self) -> Tensor:
        """Positions of A."""
        return self.indices[self.active]
