"""The differentiable operations of a sparse layer, for any engine.

They save the input and `values` for the backward pass, nothing of dense size. The gradient given to
`values` is the paper's Δ: ∇_α L restricted to B. It is deliberately *not* the derivative of the forward
pass on B∖A, where that derivative is zero.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from topkast.kernels.auto import Auto
from topkast.kernels.engine import ConvGeometry, Engine
from topkast.kernels.library import token_grad
from topkast.kernels.plan import Plan


def _is_autocast_on(device_type: str) -> bool:
    """Whether autocast is on; some devices, such as meta, have none and would raise."""
    return torch.amp.is_autocast_available(device_type) and torch.is_autocast_enabled(device_type)


def _no_autocast(x: Tensor) -> AbstractContextManager[Any]:
    """Engines get what they are given: casting is done before (`_autocast`), not inside their products."""
    device = x.device.type
    if _is_autocast_on(device):
        return torch.autocast(device, enabled=False)
    return nullcontext()


class _Linear(torch.autograd.Function):
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
        with _no_autocast(x):
            return engine.linear(plan, values, x, bias, transpose=transpose)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        x, values = ctx.saved_tensors
        with _no_autocast(x):
            grads = ctx.engine.linear_grads(
                ctx.plan, values, x, grad, ctx.needs_input_grad[:3], transpose=ctx.transpose
            )
        return (*grads, None, None, None)


class _Conv(torch.autograd.Function):
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
        with _no_autocast(x):
            return engine.conv(plan, values, x, bias, geometry)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        x, values = ctx.saved_tensors
        needs_x, needs_values, needs_bias = ctx.needs_input_grad[:3]
        with _no_autocast(x):
            grad_x, grad_values = ctx.engine.conv_grads(
                ctx.plan, values, x, grad, ctx.geometry, (needs_x, needs_values)
            )
        space = tuple(range(2, grad.ndim))
        grad_bias = grad.sum((0, *space)) if needs_bias else None
        return grad_x, grad_values, grad_bias, None, None, None


class _Embedding(torch.autograd.Function):
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
        grad = token_grad(ctx.plan, ids, grad, *ctx.rules)
        return ctx.engine.lookup_grad(ctx.plan, ids, grad), None, None, None, None, None


def _autocast(*tensors: Tensor | None) -> tuple[Tensor | None, ...]:
    """Casts to the autocast dtype where autocast is on, as torch does for its own linear and conv."""
    first = next(t for t in tensors if t is not None)
    if not _is_autocast_on(first.device.type):
        return tensors
    dtype = torch.get_autocast_dtype(first.device.type)
    return tuple(
        t if t is None or t.dtype == torch.float64 else t.to(dtype)  # torch leaves float64 alone too
        for t in tensors
    )


def _check_operands(x: Tensor, values: Tensor, bias: Tensor | None) -> None:
    """One dtype and one device, as torch demands of its own layers: engines take the input's for all."""
    for name, other in (("weight", values), ("bias", bias)):
        if other is not None and (other.dtype, other.device) != (x.dtype, x.device):
            raise ValueError(
                f"the input ({x.dtype} on {x.device}) and the {name} ({other.dtype} on {other.device}) "
                "must have the same dtype and device; cast one of them, or use torch.autocast"
            )


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
    if x.ndim == 0 or x.shape[-1] != inputs:
        raise ValueError(f"the input's last dimension must be {inputs}, got input of shape {tuple(x.shape)}")
    x, values, bias = _autocast(x, values, bias)  # pyright: ignore[reportAssignmentType]
    _check_operands(x, values, bias)
    rows = x if x.ndim == 2 else x.reshape(-1, inputs)
    if isinstance(engine, Auto):
        with _no_autocast(rows):
            engine = engine.pick(plan, values, rows, transpose=transpose)
    if torch.compiler.is_compiling():
        y = torch.ops.topkast.linear(rows, values, bias, plan.handle, engine.name, transpose)
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
    channels = plan.shape[1] * geometry.groups
    if x.ndim not in (dims + 1, dims + 2) or x.shape[-dims - 1] != channels:
        raise ValueError(
            f"the input must be ([batch,] {channels} channels, {dims} spatial dimensions), "
            f"got input of shape {tuple(x.shape)}"
        )
    x, values, bias = _autocast(x, values, bias)  # pyright: ignore[reportAssignmentType]
    _check_operands(x, values, bias)
    batched = x if x.ndim == dims + 2 else x.unsqueeze(0)
    if isinstance(engine, Auto):
        with _no_autocast(batched):
            engine = engine.pick(plan, values, batched, geometry=geometry)
    if torch.compiler.is_compiling():
        g = (geometry.stride, geometry.padding, geometry.dilation, geometry.groups)
        y = torch.ops.topkast.conv(batched, values, bias, plan.handle, engine.name, *g)
    else:
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
        IndexError: An id is not a row. Checked here because engines index without looking.
    """
    if ids.dtype not in (torch.int32, torch.int64):
        raise TypeError(f"embedding ids must be int32 or int64, got {ids.dtype}")
    flat = ids.reshape(-1).long()
    if flat.numel() and (int(flat.min()) < 0 or int(flat.max()) >= plan.num_rows):
        raise IndexError(
            f"embedding ids must lie in [0, {plan.num_rows}), "
            f"got values from {int(flat.min())} to {int(flat.max())}"
        )
    if isinstance(engine, Auto):
        engine = engine.pick_lookup(plan)
    rules = (-1 if padding_idx is None else padding_idx, scale_by_frequency)
    if torch.compiler.is_compiling():
        y = torch.ops.topkast.lookup(values, flat, plan.handle, engine.name, *rules)
    else:
        y = _Embedding.apply(values, flat, engine, plan, *rules)
    return y.view(*ids.shape, plan.num_columns)
