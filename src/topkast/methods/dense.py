"""The dense network, in the same framework: for fair comparison."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from topkast.core.moment import Moment
from topkast.core.sets import Sets
from topkast.methods.base import FixedSets


@dataclass(frozen=True)
class Dense(FixedSets):
    """A = B = all, for ever."""

    forward_sparsity: float = field(init=False, default=0.0)
    backward_sparsity: float = field(init=False, default=0.0)

    def choose(self, moment: Moment) -> Sets:
        return Sets.of(torch.arange(moment.numel))
