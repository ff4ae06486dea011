"""The exploration penalty of section 2.3 of the paper, or what a companion has in its place."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from topkast.core.weight import SparseWeight
from topkast.kernels import passes


def penalty(weight: SparseWeight, power: int = 2) -> Tensor:
    """The penalty of one weight.

    The paper calls it L2 and writes |θ|. Read as L2 (`power` = 2, the default):

        ½·Σ_A θ² + (1/2D)·Σ_{B∖A} θ²

    so that its gradient is θ on A, θ/D on B∖A and nothing on C, and its coefficient λ is an ordinary
    weight-decay size. Read to the letter (`power` = 1):

        Σ_A |θ| + (1/D)·Σ_{B∖A} |θ|

    D is the weight's own forward density |A|/n. Once exploration has ended (`explore_until`), B = A and
    the second sum is empty.

    A companion's complexity takes its place, where it has one; it knows no `power`.
    """
    own = None if weight.companion is None else weight.companion.complexity(weight.values)
    if own is not None:
        return own
    values, active, outside = weight.values, weight.active, _outside(weight)
    if torch.compiler.is_compiling():
        return _in_torch(values, active, outside, power)
    return _Penalty.apply(values, active, outside, power)


@torch.no_grad()
def penalty_gradients(weight: SparseWeight, power: int = 2) -> list[tuple[Tensor, Tensor]]:
    """What the penalty contributes to the gradient of `values`, and of what is learned beside them.

    Returns:
        Parameters, each with its contribution; without a graph.
    """
    with torch.enable_grad():
        own = None if weight.companion is None else weight.companion.complexity(weight.values)
    if own is None:
        values, active, outside = weight.values.detach(), weight.active, _outside(weight)
        return [(weight.values, _gradient(values, active, outside, power, values.new_ones(())))]
    if not own.requires_grad:
        return []
    learned = [p for p in weight.parameters() if p.requires_grad]
    gradients = torch.autograd.grad(own, learned, allow_unused=True)
    return [(p, g) for p, g in zip(learned, gradients, strict=True) if g is not None]


@torch.no_grad()
def add_gradients(weight: SparseWeight, coefficient: float, power: int = 2) -> None:
    """Adds coefficient·∇penalty to the gradients of what it depends on."""
    for parameter, gradient in penalty_gradients(weight, power):
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
        parameter.grad.add_(gradient, alpha=coefficient)


def check_power(power: int) -> None:
    """Raises ValueError unless `power` is one of the two readings."""
    if power not in (1, 2):
        raise ValueError(f"`power` must be 1 or 2, got {power!r}")


def _outside(weight: SparseWeight) -> float:
    """The factor on B∖A: 1/D, or nothing once that is frozen."""
    return 1.0 / weight.counts.forward_density if weight.explores else 0.0


def _in_torch(values: Tensor, active: Tensor, outside: float, power: int) -> Tensor:
    scale = _scale(values, active, outside)
    return (scale * values.abs()).sum() if power == 1 else 0.5 * (scale * values.square()).sum()


def _scale(values: Tensor, active: Tensor, outside: float) -> Tensor:
    # Tensors of the right dtype, not numbers: `where` makes float32 of those, also for float64 values.
    return torch.where(active, values.new_full((), 1.0), values.new_full((), outside))


def _gradient(values: Tensor, active: Tensor, outside: float, power: int, factor: Tensor) -> Tensor:
    """`factor` times the penalty's derivative, rounded alike on every device."""
    if passes.can_select(values) and active.is_cpu:
        return passes.penalty_grad(values, active, outside, power, float(factor))
    elsewhere = (factor.double() * outside).to(values.dtype)
    return torch.where(active, factor.to(values.dtype), elsewhere) * (values.sign() if power == 1 else values)


class _Penalty(Function):
    """One pass over B each way: by torch's operations it took as long as a product of a small layer."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, active: Tensor, outside: float, power: int) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx.save_for_backward(values, active)
        ctx.rules = (outside, power)
        if passes.can_select(values) and active.is_cpu:
            return values.new_tensor(passes.penalty(values.detach(), active, outside, power))
        return _in_torch(values, active, outside, power)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        values, active = ctx.saved_tensors
        outside, power = ctx.rules
        if torch.is_grad_enabled():  # somebody wants to differentiate again
            direction = values.sign() if power == 1 else values
            return grad * _scale(values, active, outside) * direction, None, None, None
        return _gradient(values, active, outside, power, grad), None, None, None
