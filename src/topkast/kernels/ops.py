"""The differentiable operations of a sparse layer, for any engine.

They save the input and `values` for the backward pass, nothing of dense size. The gradient given to
`values` is the paper's Δ: ∇_α L restricted to B. It is deliberately *not* the derivative of the forward
pass on B∖A, where that derivative is zero.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function, forward_ad
from torch.autograd.function import once_differentiable

from topkast.kernels.auto import Auto
from topkast.kernels.engine import ConvGeometry, Engine
from topkast.kernels.plan import Plan
from topkast.kernels.rules import (
    autocast,
    check_channels,
    check_features,
    check_ids,
    check_operands,
    flat_ids,
    no_autocast,
    token_grad,
)


class _Linear(Function):
    @staticmethod
    def forward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any,
        x: Tensor,
        values: Tensor,
        bias: Tensor | None,
        engine: Engine,
        plan: Plan,
        transpose: bool,
    ) -> Tensor:
        ctx.save_for_backward(x, values)
        ctx.engine, ctx.plan, ctx.transpose = engine, plan, transpose
        with no_autocast(x):
            return engine.linear(plan, values, x, bias, transpose=transpose)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        x, values = ctx.saved_tensors
        with no_autocast(x):
            grads = ctx.engine.linear_grads(
                ctx.plan, values, x, grad, ctx.needs_input_grad[:3], transpose=ctx.transpose
            )
        return (*grads, None, None, None)


class _Conv(Function):
    @staticmethod
    def forward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any,
        x: Tensor,
        values: Tensor,
        bias: Tensor | None,
        engine: Engine,
        plan: Plan,
        geometry: ConvGeometry,
    ) -> Tensor:
        ctx.save_for_backward(x, values)
        ctx.engine, ctx.plan, ctx.geometry = engine, plan, geometry
        with no_autocast(x):
            return engine.conv(plan, values, x, bias, geometry)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        x, values = ctx.saved_tensors
        needs_x, needs_values, needs_bias = ctx.needs_input_grad[:3]
        with no_autocast(x):
            grad_x, grad_values = ctx.engine.conv_grads(
                ctx.plan, values, x, grad, ctx.geometry, (needs_x, needs_values)
            )
        space = tuple(range(2, grad.ndim))
        grad_bias = grad.sum((0, *space)) if needs_bias else None
        return grad_x, grad_values, grad_bias, None, None, None


class _Embedding(Function):
    @staticmethod
    def forward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any,
        values: Tensor,
        ids: Tensor,
        engine: Engine,
        plan: Plan,
        padding_idx: int,
        scale_by_frequency: bool,
    ) -> Tensor:
        ctx.save_for_backward(ids)
        ctx.engine, ctx.plan = engine, plan
        ctx.rules = (padding_idx, scale_by_frequency)
        return engine.lookup(plan, values, ids)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        (ids,) = ctx.saved_tensors
        grad = token_grad(ctx.plan.num_rows, ids, grad, *ctx.rules)
        return ctx.engine.lookup_grad(ctx.plan, ids, grad), None, None, None, None, None


def _is_alone() -> bool:
    """Whether nobody can want a derivative of what is computed now: then autograd need not know of it."""
    if torch.is_grad_enabled():
        return False
    return forward_ad._current_level < 0 and not torch._C._are_functorch_transforms_active()


def linear(
    engine: Engine | Auto,
    plan: Plan,
    values: Tensor,
    x: Tensor,
    bias: Tensor | None = None,
    *,
    transpose: bool = False,
) -> Tensor:
    """Y = x·αᵀ + bias (with `transpose`, y = x·α + bias), for x of any rank.

    Args:
        x: ``(*, inputs)``.
        bias: ``(outputs,)`` or None.

    Returns:
        ``(*, outputs)``.
    """
    inputs = plan.num_rows if transpose else plan.num_columns
    outputs = plan.num_outputs(transpose=transpose)
    check_features(x, inputs)
    x, values, bias = autocast(x, values, bias)  # pyright: ignore[reportAssignmentType]
    check_operands(x, values, bias)
    rows = x if x.ndim == 2 else x.reshape(-1, inputs)
    if isinstance(engine, Auto):
        with no_autocast(rows):
            engine = engine.pick(plan, values, rows, transpose=transpose)
    if _is_alone():
        with no_autocast(rows):
            y = engine.linear_alone(plan, values, rows, bias, transpose=transpose)
    else:
        y = _Linear.apply(rows, values, bias, engine, plan, transpose)
    return y if x.ndim == 2 else y.view(*x.shape[:-1], outputs)


def conv(
    engine: Engine | Auto,
    plan: Plan,
    values: Tensor,
    x: Tensor,
    bias: Tensor | None,
    geometry: ConvGeometry,
) -> Tensor:
    """The convolution of ``(batch, channels, *space)`` or ``(channels, *space)`` with α, plus bias."""
    dims = geometry.num_dims
    check_channels(x, plan.shape[1] * geometry.groups, dims)
    x, values, bias = autocast(x, values, bias)  # pyright: ignore[reportAssignmentType]
    check_operands(x, values, bias)
    batched = x if x.ndim == dims + 2 else x.unsqueeze(0)
    if isinstance(engine, Auto):
        with no_autocast(batched):
            engine = engine.pick(plan, values, batched, geometry=geometry)
    y = _Conv.apply(batched, values, bias, engine, plan, geometry)
    return y if x.ndim == dims + 2 else y.squeeze(0)


def embedding(
    engine: Engine | Auto,
    plan: Plan,
    values: Tensor,
    ids: Tensor,
    *,
    padding_idx: int | None = None,
    scale_by_frequency: bool = False,
) -> Tensor:
    """Rows `ids` of α, for ids of any shape: ``(*, num_columns)``.

    Raises:
        IndexError: An id is not a row.
    """
    flat = flat_ids(ids)
    check_ids(flat, plan.num_rows)
    if isinstance(engine, Auto):
        engine = engine.pick_lookup(plan)
    rules = (-1 if padding_idx is None else padding_idx, scale_by_frequency)
    y = _Embedding.apply(values, flat, engine, plan, *rules)
    return y.view(*ids.shape, plan.num_columns)
