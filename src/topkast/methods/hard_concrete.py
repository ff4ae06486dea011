"""L0: Learning Sparse Neural Networks through L0 Regularization (Louizos, Welling, Kingma, ICLR 2018)."""

from __future__ import annotations

import math
from dataclasses import KW_ONLY, dataclass

import torch
from torch import Tensor, nn

from topkast.core.moment import Moment
from topkast.core.sets import Sets
from topkast.core.slots import Companion
from topkast.methods.gated import Gated, Gates

# β, γ and ζ of the paper.
TEMPERATURE, LOWER, UPPER = 2 / 3, -0.1, 1.1


class HardConcrete(Gates):
    """log α of every weight: the products use θ·z, and z is exactly 0 or 1 with a probability of its own."""

    by_slot = ("log_alpha",)

    def __init__(self, num_slots: int, droprate: float, dtype: torch.dtype) -> None:
        super().__init__()
        start = math.log(1 - droprate) - math.log(droprate)
        self.log_alpha = nn.Parameter(torch.full((num_slots,), start, dtype=dtype))

    def noisy(self, values: Tensor) -> Tensor:
        """θ·z with s = σ((log u - log(1 - u) + log α)/β) and u uniform in (0, 1)."""
        u = torch.rand_like(self.log_alpha)
        return values * _stretched(torch.sigmoid((u.logit() + self.log_alpha) / TEMPERATURE))

    def gated(self, values: Tensor) -> Tensor:
        """θ·z with s = σ(log α)."""
        return values * _stretched(torch.sigmoid(self.log_alpha))

    def cost(self, values: Tensor) -> Tensor:
        """Σ σ(log α - β·log(-γ/ζ)), how many gates are not zero in training, on average."""
        return torch.sigmoid(self.log_alpha - TEMPERATURE * math.log(-LOWER / UPPER)).sum()


def _stretched(s: Tensor) -> Tensor:
    """The gate z = min(1, max(0, s·(ζ - γ) + γ))."""
    return (s * (UPPER - LOWER) + LOWER).clamp(0, 1)


@dataclass(frozen=True)
class L0(Gated):
    """A hard-concrete gate for every weight, and the expected number of open gates in the loss.

        z = min(1, max(0, s·(ζ - γ) + γ))
        s = σ((log u - log(1 - u) + log α)/β) in training, σ(log α) in evaluation

    The products use θ·z. `Handle.penalty` is Σ σ(log α - β·log(-γ/ζ)), with the paper's β = 2/3, γ = -0.1
    and ζ = 1.1. The paper also has one gate for all weights of a unit; here each weight has its own. All
    log α start at one number, where the authors add noise of 0.01: θ already tells the weights apart.

    Attributes:
        droprate_init: p, from which log α = log((1 - p)/p) starts.
    """

    _: KW_ONLY
    droprate_init: float = 0.5

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.droprate_init, bool) or not isinstance(self.droprate_init, int | float):
            raise TypeError(f"`droprate_init` must be a number, got {self.droprate_init!r}")
        if not 0 < self.droprate_init < 1:
            raise ValueError(
                f"`droprate_init` must be above 0 and below 1, got {self.droprate_init!r}: gates that start "
                "fully open or shut learn nothing"
            )

    @property
    def companion_type(self) -> type[Companion]:
        return HardConcrete

    def companion(self, moment: Moment, sets: Sets, dtype: torch.dtype) -> Companion:
        return HardConcrete(sets.indices.numel(), self.droprate_init, dtype)
