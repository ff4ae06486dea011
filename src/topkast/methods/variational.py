"""Variational Dropout Sparsifies Deep Neural Networks (Molchanov, Ashukha, Vetrov, ICML 2017)."""

from __future__ import annotations

import math
from dataclasses import KW_ONLY, dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from topkast.core.moment import Moment
from topkast.core.sets import Sets
from topkast.core.slots import Companion
from topkast.methods.gated import Gated, Gates

# k₁, k₂ and k₃ of the paper.
K1, K2, K3 = 0.63576, 1.87320, 1.48695
# Added to θ², so that its logarithm and the derivative of that stay finite at θ = 0.
EPSILON = 1e-8


class NoiseScales(Gates):
    """log σ² of every weight: the products use θ + σ·ε, and weights that are mostly noise are cut."""

    by_slot = ("log_sigma2",)

    def __init__(self, num_slots: int, initial: float, threshold: float, dtype: torch.dtype) -> None:
        super().__init__()
        self.threshold = threshold
        self.log_sigma2 = nn.Parameter(torch.full((num_slots,), initial, dtype=dtype))

    def log_alpha(self, values: Tensor) -> Tensor:
        """How much noise: log α = log σ² - log θ²."""
        return self.log_sigma2 - (values.square() + EPSILON).log()

    def noisy(self, values: Tensor) -> Tensor:
        """θ + σ·ε with ε normal."""
        return values + (0.5 * self.log_sigma2).exp() * torch.randn_like(values)

    def gated(self, values: Tensor) -> Tensor:
        """θ where log α is at most the threshold."""
        return values * (self.log_alpha(values) <= self.threshold)

    def cost(self, values: Tensor) -> Tensor:
        """KL ≈ Σ k₁ - k₁·σ(k₂ + k₃·log α) + ½·log(1 + 1/α)."""
        log_alpha = self.log_alpha(values)
        return (K1 * torch.sigmoid(-K2 - K3 * log_alpha) + 0.5 * F.softplus(-log_alpha)).sum()


@dataclass(frozen=True)
class VariationalDropout(Gated):
    """A noise scale for every weight, and the distance to a log-uniform prior in the loss.

        in training θ + σ·ε; in evaluation θ where log α = log σ² - log θ² ≤ 3, else 0

    `Handle.penalty` is the paper's approximation of the KL divergence,

        KL ≈ Σ k₁ - k₁·σ(k₂ + k₃·log α) + ½·log(1 + 1/α),  k₁ = 0.63576, k₂ = 1.87320, k₃ = 1.48695

    to be scaled by 1/N for N training examples and a mean loss, or by more. Noise is drawn once for each
    weight and step. The paper draws it for each example, at the outputs of a layer (local reparametrisation):
    less variance, and a second product of dense size in every layer. θ² has 1e-8 added where its logarithm is
    taken.

    Attributes:
        log_sigma2_init: What log σ² starts at.
        threshold: log α from which on a weight is zero in evaluation. The paper's 3.
        penalty_warmup: The paper raises the scale of the KL divergence from 0 in the first epochs.
    """

    _: KW_ONLY
    log_sigma2_init: float = -10.0
    threshold: float = 3.0

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("log_sigma2_init", "threshold"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float):
                raise TypeError(f"`{name}` must be a number, got {value!r}")
            if not math.isfinite(value):
                raise ValueError(f"`{name}` must be finite, got {value!r}")

    @property
    def companion_type(self) -> type[Companion]:
        return NoiseScales

    def companion(self, moment: Moment, sets: Sets, dtype: torch.dtype) -> Companion:
        return NoiseScales(sets.indices.numel(), self.log_sigma2_init, self.threshold, dtype)
