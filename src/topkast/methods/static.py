"""A fixed random mask: the baseline that every method has to beat."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from topkast.core.reservoir import Theta
from topkast.core.select import random_subset
from topkast.core.sets import Counts, Sets
from topkast.methods.base import FixedSets


@dataclass(frozen=True)
class Static(FixedSets):
    """A random set of K_A weights, chosen once; B = A. "Static" in the paper's Figure 2.

    Attributes:
        forward_sparsity: 1 - D.
    """

    forward_sparsity: float
    backward_sparsity: float = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "backward_sparsity", self.forward_sparsity)
        super().__post_init__()

    def choose(self, theta: Theta, counts: Counts, generator: torch.Generator) -> Sets:
        positions = random_subset(counts.numel, counts.forward, generator)
        return Sets.from_positions(positions, positions)
