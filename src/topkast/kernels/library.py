"""The operations registered with torch, as `torch.ops.topkast.*`: with schemas, shapes and gradients.

For whatever traces a model instead of running it, such as `torch.compile`. Tensors go in and out; a Plan goes
by its handle, a number, since torch's operators take nothing else. They compute what the autograd functions
of `ops.py` compute, which are used otherwise: a registered operator costs about 100 µs more per layer.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from topkast.kernels.engine import ConvGeometry, output_space
from topkast.kernels.engines import ENGINES
from topkast.kernels.plan import Plan

_LIBRARY = torch.library.Library("topkast", "DEF")
_DEFINITIONS = (
    "linear(Tensor x, Tensor values, Tensor? bias, int plan, str engine, bool transpose) -> Tensor",
    "linear_grads(Tensor grad, Tensor x, Tensor values, int plan, str engine, bool transpose, bool[] needs)"
    " -> (Tensor, Tensor, Tensor)",
    "conv(Tensor x, Tensor values, Tensor? bias, int plan, str engine, int[] stride, int[] padding,"
    " int[] dilation, int groups) -> Tensor",
    "conv_grads(Tensor grad, Tensor x, Tensor values, int plan, str engine, int[] stride, int[] padding,"
    " int[] dilation, int groups, bool[] needs) -> (Tensor, Tensor, Tensor)",
    "lookup(Tensor values, Tensor ids, int plan, str engine, int padding_idx, bool scale) -> Tensor",
    "lookup_grad(Tensor grad, Tensor ids, int plan, str engine, int padding_idx, bool scale) -> Tensor",
)
for _definition in _DEFINITIONS:
    _LIBRARY.define(_definition)


def _wanted(like: Tensor, *grads: Tensor | None) -> tuple[Tensor, ...]:
    """An operator cannot return None: what was not wanted is an empty tensor."""
    return tuple(like.new_empty(0) if g is None else g for g in grads)


def _given(grads: tuple[Tensor, ...], needs: list[bool]) -> tuple[Tensor | None, ...]:
    return tuple(g if needed else None for g, needed in zip(grads, needs, strict=True))


# ---- linear ---------------------------------------------------------------------------------------------


def _linear(
    x: Tensor, values: Tensor, bias: Tensor | None, plan: int, engine: str, transpose: bool
) -> Tensor:
    return ENGINES[engine].linear(Plan.of(plan), values, x, bias, transpose=transpose)


def _linear_fake(
    x: Tensor, values: Tensor, bias: Tensor | None, plan: int, engine: str, transpose: bool
) -> Tensor:
    return x.new_empty(x.shape[0], Plan.of(plan).num_outputs(transpose=transpose))


def _linear_grads(
    grad: Tensor, x: Tensor, values: Tensor, plan: int, engine: str, transpose: bool, needs: list[bool]
) -> tuple[Tensor, ...]:
    wanted = (needs[0], needs[1], needs[2])
    grads = ENGINES[engine].linear_grads(Plan.of(plan), values, x, grad, wanted, transpose=transpose)
    return _wanted(x, *grads)


def _linear_grads_fake(
    grad: Tensor, x: Tensor, values: Tensor, plan: int, engine: str, transpose: bool, needs: list[bool]
) -> tuple[Tensor, ...]:
    shapes = (x.shape, values.shape, grad.shape[1:])
    return tuple(x.new_empty(s if n else (0,)) for s, n in zip(shapes, needs, strict=True))


def _linear_setup(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    x, values, _bias, *ctx.rest = inputs
    ctx.save_for_backward(x, values)


def _linear_backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    needs = list(ctx.needs_input_grad[:3])
    grads = torch.ops.topkast.linear_grads(grad, *ctx.saved_tensors, *ctx.rest, needs)
    return (*_given(grads, needs), None, None, None)


# ---- convolution ----------------------------------------------------------------------------------------


def _geometry(*sizes: Any) -> ConvGeometry:
    stride, padding, dilation, groups = sizes
    return ConvGeometry(tuple(stride), tuple(padding), tuple(dilation), groups)


def _conv(
    x: Tensor, values: Tensor, bias: Tensor | None, plan: int, engine: str, *geometry: list[int]
) -> Tensor:
    return ENGINES[engine].conv(Plan.of(plan), values, x, bias, _geometry(*geometry))


def _conv_fake(
    x: Tensor, values: Tensor, bias: Tensor | None, plan: int, engine: str, *geometry: list[int]
) -> Tensor:
    p = Plan.of(plan)
    space = output_space(tuple(x.shape[2:]), p.shape[2:], _geometry(*geometry))
    return x.new_empty(x.shape[0], p.num_rows, *space)


def _conv_grads(
    grad: Tensor, x: Tensor, values: Tensor, plan: int, engine: str, *geometry_and_needs: list[Any]
) -> tuple[Tensor, ...]:
    *geometry, needs = geometry_and_needs
    wanted = (needs[0], needs[1])
    grads = ENGINES[engine].conv_grads(Plan.of(plan), values, x, grad, _geometry(*geometry), wanted)
    over_space = (0, *range(2, grad.ndim))
    return _wanted(x, *grads, grad.sum(over_space) if needs[2] else None)


def _conv_grads_fake(
    grad: Tensor, x: Tensor, values: Tensor, plan: int, engine: str, *geometry_and_needs: list[Any]
) -> tuple[Tensor, ...]:
    shapes = (x.shape, values.shape, grad.shape[1:2])
    return tuple(x.new_empty(s if n else (0,)) for s, n in zip(shapes, geometry_and_needs[-1], strict=True))


def _conv_setup(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    x, values, _bias, *ctx.rest = inputs
    ctx.save_for_backward(x, values)


def _conv_backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    needs = list(ctx.needs_input_grad[:3])
    grads = torch.ops.topkast.conv_grads(grad, *ctx.saved_tensors, *ctx.rest, needs)
    return (*_given(grads, needs), *[None] * 6)


# ---- embedding ------------------------------------------------------------------------------------------


def _lookup(values: Tensor, ids: Tensor, plan: int, engine: str, padding_idx: int, scale: bool) -> Tensor:
    return ENGINES[engine].lookup(Plan.of(plan), values, ids)


def _lookup_fake(
    values: Tensor, ids: Tensor, plan: int, engine: str, padding_idx: int, scale: bool
) -> Tensor:
    return values.new_empty(ids.shape[0], Plan.of(plan).num_columns)


def token_grad(plan: Plan, ids: Tensor, grad: Tensor, padding_idx: int, scale: bool) -> Tensor:
    """What each token contributes: its share if rows are scaled by frequency, nothing if it is padding."""
    if scale:
        counts = torch.bincount(ids, minlength=plan.num_rows)
        grad = grad / counts.index_select(0, ids).unsqueeze(1)
    if padding_idx >= 0:
        grad = grad.masked_fill((ids == padding_idx).unsqueeze(1), 0.0)
    return grad


def _lookup_grad(grad: Tensor, ids: Tensor, plan: int, engine: str, padding_idx: int, scale: bool) -> Tensor:
    p = Plan.of(plan)
    return ENGINES[engine].lookup_grad(p, ids, token_grad(p, ids, grad, padding_idx, scale))


def _lookup_grad_fake(
    grad: Tensor, ids: Tensor, plan: int, engine: str, padding_idx: int, scale: bool
) -> Tensor:
    return grad.new_empty(Plan.of(plan).num_slots)


def _lookup_setup(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    _values, ids, *ctx.rest = inputs
    ctx.save_for_backward(ids)


def _lookup_backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    return (torch.ops.topkast.lookup_grad(grad, *ctx.saved_tensors, *ctx.rest), *[None] * 5)


# ---- registration ---------------------------------------------------------------------------------------

for _name, _implementation, _fake in (
    ("linear", _linear, _linear_fake),
    ("linear_grads", _linear_grads, _linear_grads_fake),
    ("conv", _conv, _conv_fake),
    ("conv_grads", _conv_grads, _conv_grads_fake),
    ("lookup", _lookup, _lookup_fake),
    ("lookup_grad", _lookup_grad, _lookup_grad_fake),
):
    _LIBRARY.impl(_name, _implementation, "CompositeExplicitAutograd")
    torch.library.register_fake(f"topkast::{_name}", _fake, lib=_LIBRARY)


def _no_setup(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    pass


def _not_again(ctx: Any, *grads: Any) -> None:
    raise RuntimeError(
        "the gradients of topkast's layers are not differentiable again: on B∖A they are not the derivative "
        "of the forward pass to begin with"
    )


for _name, _setup, _backward in (
    ("linear_grads", _no_setup, _not_again),
    ("conv_grads", _no_setup, _not_again),
    ("lookup_grad", _no_setup, _not_again),
    ("linear", _linear_setup, _linear_backward),
    ("conv", _conv_setup, _conv_backward),
    ("lookup", _lookup_setup, _lookup_backward),
):
    torch.library.register_autograd(f"topkast::{_name}", _backward, setup_context=_setup, lib=_LIBRARY)
