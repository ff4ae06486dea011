"""Methods that choose their sets once: a fixed random mask, what is there, and no sparsity at all."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from topkast.core.moment import Moment
from topkast.core.select import random_subset
from topkast.core.sets import Sets
from topkast.methods.base import FixedSets, OneSparsity


@dataclass(frozen=True)
class Static(OneSparsity, FixedSets):
    """A random set of K_A weights, chosen once; B = A. "Static" in the paper's Figure 2.

    Attributes:
        forward_sparsity: 1 - D.
    """

    def choose(self, moment: Moment) -> Sets:
        return Sets.of(random_subset(moment.numel, moment.counts.forward, moment.generator))


@dataclass(frozen=True)
class InUse(OneSparsity, FixedSets):
    """The K_A largest weights, chosen once; B = A. For a network that is sparse already.

    Attributes:
        forward_sparsity: 1 - D.
    """

    def choose(self, moment: Moment) -> Sets:
        return Sets.of(moment.theta.top(moment.counts.forward))


@dataclass(frozen=True)
class Dense(FixedSets):
    """A = B = all, for ever."""

    forward_sparsity: float = field(init=False, default=0.0)
    backward_sparsity: float = field(init=False, default=0.0)

    def choose(self, moment: Moment) -> Sets:
        return Sets.of(torch.arange(moment.numel))
