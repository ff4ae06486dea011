"""The exploration penalty of section 2.3 of the paper."""

from __future__ import annotations

import torch
from torch import Tensor

from topkast.core.weight import SparseWeight


def penalty(weight: SparseWeight, power: int = 2) -> Tensor:
    """The penalty of one weight.

    The paper calls it L2 and writes |θ|. Read as L2 (`power` = 2, the default):

        ½·Σ_A θ² + (1/2D)·Σ_{B∖A} θ²

    so that its gradient is θ on A, θ/D on B∖A and nothing on C, and its coefficient λ is an ordinary
    weight-decay size. Read to the letter (`power` = 1):

        Σ_A |θ| + (1/D)·Σ_{B∖A} |θ|

    D is the weight's own forward density |A|/n. Once exploration has ended (`explore_until`), B = A and
    the second sum is empty.
    """
    values = weight.values
    if power == 1:
        return (_scale(weight) * values.abs()).sum()
    return 0.5 * (_scale(weight) * values.square()).sum()


@torch.no_grad()
def penalty_gradient(weight: SparseWeight, power: int = 2) -> Tensor:
    """What the penalty contributes to the gradient of `values`, without a graph."""
    values = weight.values.detach()
    return _scale(weight) * (values.sign() if power == 1 else values)


def check_power(power: int) -> None:
    """Raises ValueError unless `power` is one of the two readings."""
    if power not in (1, 2):
        raise ValueError(f"`power` must be 1 or 2, got {power!r}")


def _scale(weight: SparseWeight) -> Tensor:
    """1 on A; 1/D on B∖A, or nothing once that is frozen."""
    outside = 1.0 / weight.counts.forward_density if weight.explores else 0.0
    values = weight.values
    # Tensors of the right dtype, not numbers: `where` makes float32 of those, also for float64 values.
    return torch.where(weight.active, values.new_full((), 1.0), values.new_full((), outside))
