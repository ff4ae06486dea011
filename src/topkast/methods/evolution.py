"""SET: Sparse Evolutionary Training (Mocanu et al., Nature Communications 2018)."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import Literal

import torch
from torch import Tensor

from topkast.core.moment import Moment
from topkast.core.select import random_outside
from topkast.core.sets import Sets
from topkast.core.slots import Companion
from topkast.methods.drop_and_grow import DropAndGrow


class Spread(Companion):
    """The standard deviation of θ⁰ on the first B, from which new weights are drawn."""

    def __init__(self, values: Tensor) -> None:
        super().__init__()
        self.register_buffer("std", values.std() if values.numel() > 1 else values.abs().sum())


@dataclass(frozen=True)
class SET(DropAndGrow):
    """Drops the smallest ζ of A and grows at random.

    Attributes:
        forward_sparsity: 1 - D.
        drop_fraction: ζ. The paper's 0.3.
        update_every: An epoch in the paper.
        grown_at: What new weights start at: "initial", drawn from a normal distribution with the layer's
            initial standard deviation, as in the paper; or "zero", as RigL's authors run it.
    """

    _: KW_ONLY
    grown_at: Literal["initial", "zero"] = "initial"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.grown_at not in ("initial", "zero"):
            raise ValueError(f"`grown_at` must be 'initial' or 'zero', got {self.grown_at!r}")

    def grow(self, moment: Moment, kept: Tensor, count: int) -> Tensor:
        return random_outside(moment.numel, count, kept, moment.generator)

    @property
    def companion_type(self) -> type[Companion] | None:
        return Spread if self.grown_at == "initial" else None

    def companion(self, moment: Moment, sets: Sets, dtype: torch.dtype) -> Companion | None:
        return Spread(moment.theta.at(sets.indices)) if self.grown_at == "initial" else None

    def fresh(self, moment: Moment, positions: Tensor) -> Tensor | None:
        if not isinstance(moment.companion, Spread):
            return None
        noise = torch.randn(positions.numel(), generator=moment.generator)
        return noise * moment.companion.get_buffer("std").cpu()
