"""The operations registered with torch, as `torch.ops.topkast.*`: with schemas, shapes and gradients.

For whatever traces a model instead of running it, such as `torch.compile`; `traced.py` calls them. Tensors go
in and out. `pick` is given the number of a weight (see `source.py`) and says which Plan and which engine the
products are to be computed with, as a `ticket` of two numbers: a graph is traced once, and asks again at each
run. They compute what the autograd functions of `ops.py` compute, which are used otherwise: a registered
operator costs about 100 µs more per layer.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from topkast.kernels.auto import NAMES, Auto
from topkast.kernels.engine import ConvGeometry, Engine, output_space
from topkast.kernels.engines import ENGINES
from topkast.kernels.plan import Plan
from topkast.kernels.rules import check_ids, no_autocast, token_grad
from topkast.kernels.source import source_of

_LIBRARY = torch.library.Library("topkast", "DEF")
_DEFINITIONS = (
    "pick(Tensor x, Tensor values, Tensor source, str kind, int[] rules, bool measures) -> Tensor",
    "linear(Tensor x, Tensor values, Tensor? bias, Tensor ticket, int outputs, bool transpose) -> Tensor",
    "linear_grads(Tensor grad, Tensor x, Tensor values, Tensor ticket, bool transpose, bool[] needs)"
    " -> (Tensor, Tensor, Tensor)",
    "conv(Tensor x, Tensor values, Tensor? bias, Tensor ticket, int[] shape, int[] rules) -> Tensor",
    "conv_grads(Tensor grad, Tensor x, Tensor values, Tensor ticket, int[] rules, bool[] needs)"
    " -> (Tensor, Tensor, Tensor)",
    "lookup(Tensor values, Tensor ids, Tensor ticket, int columns, int padding_idx, bool scale) -> Tensor",
    "lookup_grad(Tensor grad, Tensor values, Tensor ids, Tensor ticket, int padding_idx, bool scale)"
    " -> Tensor",
    "watch(Tensor y, Tensor x, Tensor source, str kind, int[] rules) -> Tensor",
    "record(Tensor grad, Tensor x, Tensor source, str kind, int[] rules) -> Tensor",
)
for _definition in _DEFINITIONS:
    _LIBRARY.define(_definition)


def _wanted(like: Tensor, *grads: Tensor | None) -> tuple[Tensor, ...]:
    """An operator cannot return None: what was not wanted is an empty tensor."""
    return tuple(like.new_empty(0) if g is None else g for g in grads)


def _given(grads: tuple[Tensor, ...], needs: list[bool]) -> tuple[Tensor | None, ...]:
    return tuple(g if needed else None for g, needed in zip(grads, needs, strict=True))


# ---- which Plan and engine --------------------------------------------------------------------------------


def geometry_rules(geometry: ConvGeometry) -> list[int]:
    """A geometry as operators take it: one list of numbers."""
    return [*geometry.stride, *geometry.padding, *geometry.dilation, geometry.groups]


def rules_geometry(rules: list[int]) -> ConvGeometry:
    """The inverse of `geometry_rules`."""
    dims = len(rules) // 3
    stride, padding, dilation = (tuple(rules[i * dims : (i + 1) * dims]) for i in range(3))
    return ConvGeometry(stride, padding, dilation, rules[-1])


def ticket(plan: Plan, engine: Engine) -> Tensor:
    """What stands for a Plan and an engine in a graph."""
    return torch.tensor([plan.handle, NAMES.index(engine.name)], dtype=torch.int64, device="cpu")


def _read(ticket: Tensor) -> tuple[Plan, Engine]:
    handle, code = ticket.tolist()
    return Plan.of(handle), ENGINES[NAMES[code]]


def _pick(x: Tensor, values: Tensor, source: Tensor, kind: str, rules: list[int], measures: bool) -> Tensor:
    weight = source_of(source)
    plan, engine = weight.plan, weight.engine_impl()
    if isinstance(engine, Auto):
        if kind == "embedding":
            engine = engine.pick_lookup(plan)
        else:
            geometry = rules_geometry(rules) if kind == "conv" else None
            transpose = kind == "linear" and bool(rules[0])
            with no_autocast(x):
                engine = engine.pick(
                    plan, values, x, geometry=geometry, transpose=transpose, is_training=measures
                )
    return ticket(plan, engine)


def _pick_fake(
    x: Tensor, values: Tensor, source: Tensor, kind: str, rules: list[int], measures: bool
) -> Tensor:
    return torch.empty(2, dtype=torch.int64, device="cpu")


# ---- linear ---------------------------------------------------------------------------------------------


def _linear(
    x: Tensor, values: Tensor, bias: Tensor | None, ticket: Tensor, outputs: int, transpose: bool
) -> Tensor:
    plan, engine = _read(ticket)
    with no_autocast(x):
        return engine.linear(plan, values, x, bias, transpose=transpose)


def _linear_fake(
    x: Tensor, values: Tensor, bias: Tensor | None, ticket: Tensor, outputs: int, transpose: bool
) -> Tensor:
    return x.new_empty(x.shape[0], outputs)


def _linear_grads(
    grad: Tensor, x: Tensor, values: Tensor, ticket: Tensor, transpose: bool, needs: list[bool]
) -> tuple[Tensor, ...]:
    plan, engine = _read(ticket)
    wanted = (needs[0], needs[1], needs[2])
    with no_autocast(x):
        return _wanted(x, *engine.linear_grads(plan, values, x, grad, wanted, transpose=transpose))


def _linear_grads_fake(
    grad: Tensor, x: Tensor, values: Tensor, ticket: Tensor, transpose: bool, needs: list[bool]
) -> tuple[Tensor, ...]:
    shapes = (x.shape, values.shape, grad.shape[1:])
    return tuple(x.new_empty(s if n else (0,)) for s, n in zip(shapes, needs, strict=True))


def _linear_setup(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    x, values, _bias, ticket, _outputs, ctx.transpose = inputs
    ctx.save_for_backward(x, values, ticket)


def _linear_backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    needs = list(ctx.needs_input_grad[:3])
    grads = torch.ops.topkast.linear_grads(grad, *ctx.saved_tensors, ctx.transpose, needs)
    return (*_given(grads, needs), None, None, None)


# ---- convolution ----------------------------------------------------------------------------------------


def _conv(
    x: Tensor, values: Tensor, bias: Tensor | None, ticket: Tensor, shape: list[int], rules: list[int]
) -> Tensor:
    plan, engine = _read(ticket)
    with no_autocast(x):
        return engine.conv(plan, values, x, bias, rules_geometry(rules))


def _conv_fake(
    x: Tensor, values: Tensor, bias: Tensor | None, ticket: Tensor, shape: list[int], rules: list[int]
) -> Tensor:
    space = output_space(tuple(x.shape[2:]), tuple(shape[2:]), rules_geometry(rules))
    return x.new_empty(x.shape[0], shape[0], *space)


def _conv_grads(
    grad: Tensor, x: Tensor, values: Tensor, ticket: Tensor, rules: list[int], needs: list[bool]
) -> tuple[Tensor, ...]:
    plan, engine = _read(ticket)
    with no_autocast(x):
        grads = engine.conv_grads(plan, values, x, grad, rules_geometry(rules), (needs[0], needs[1]))
    over_space = (0, *range(2, grad.ndim))
    return _wanted(x, *grads, grad.sum(over_space) if needs[2] else None)


def _conv_grads_fake(
    grad: Tensor, x: Tensor, values: Tensor, ticket: Tensor, rules: list[int], needs: list[bool]
) -> tuple[Tensor, ...]:
    shapes = (x.shape, values.shape, grad.shape[1:2])
    return tuple(x.new_empty(s if n else (0,)) for s, n in zip(shapes, needs, strict=True))


def _conv_setup(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    x, values, _bias, ticket, _shape, ctx.rules = inputs
    ctx.save_for_backward(x, values, ticket)


def _conv_backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    needs = list(ctx.needs_input_grad[:3])
    grads = torch.ops.topkast.conv_grads(grad, *ctx.saved_tensors, ctx.rules, needs)
    return (*_given(grads, needs), None, None, None)


# ---- embedding ------------------------------------------------------------------------------------------


def _lookup(
    values: Tensor, ids: Tensor, ticket: Tensor, columns: int, padding_idx: int, scale: bool
) -> Tensor:
    plan, engine = _read(ticket)
    check_ids(ids, plan.num_rows)
    return engine.lookup(plan, values, ids)


def _lookup_fake(
    values: Tensor, ids: Tensor, ticket: Tensor, columns: int, padding_idx: int, scale: bool
) -> Tensor:
    return values.new_empty(ids.shape[0], columns)


def _lookup_grad(
    grad: Tensor, values: Tensor, ids: Tensor, ticket: Tensor, padding_idx: int, scale: bool
) -> Tensor:
    plan, engine = _read(ticket)
    return engine.lookup_grad(plan, ids, token_grad(plan.num_rows, ids, grad, padding_idx, scale))


def _lookup_grad_fake(
    grad: Tensor, values: Tensor, ids: Tensor, ticket: Tensor, padding_idx: int, scale: bool
) -> Tensor:
    return grad.new_empty(values.shape[0])


def _lookup_setup(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    values, ids, ticket, _columns, *ctx.rest = inputs
    ctx.save_for_backward(values, ids, ticket)


def _lookup_backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    return (torch.ops.topkast.lookup_grad(grad, *ctx.saved_tensors, *ctx.rest), *[None] * 5)


# ---- the dense gradient, for methods that grow by it -------------------------------------------------------

# Both give back what they are given, as a copy: an operator must not return its argument, and one whose
# result nobody used would be left out of the graph.


def _watch(y: Tensor, x: Tensor, source: Tensor, kind: str, rules: list[int]) -> Tensor:
    source_of(source).prepare_tape()
    return y.clone()


def _record(grad: Tensor, x: Tensor, source: Tensor, kind: str, rules: list[int]) -> Tensor:
    source_of(source).record(kind, rules, x, grad)
    return grad.clone()


def _copy_fake(y: Tensor, x: Tensor, source: Tensor, kind: str, rules: list[int]) -> Tensor:
    return torch.empty_like(y)


def _watch_setup(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    _y, x, source, *ctx.rest = inputs
    ctx.save_for_backward(x, source)


def _watch_backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    return (torch.ops.topkast.record(grad, *ctx.saved_tensors, *ctx.rest), *[None] * 4)


# ---- registration ---------------------------------------------------------------------------------------

for _name, _implementation, _fake in (
    ("pick", _pick, _pick_fake),
    ("linear", _linear, _linear_fake),
    ("linear_grads", _linear_grads, _linear_grads_fake),
    ("conv", _conv, _conv_fake),
    ("conv_grads", _conv_grads, _conv_grads_fake),
    ("lookup", _lookup, _lookup_fake),
    ("lookup_grad", _lookup_grad, _lookup_grad_fake),
    ("watch", _watch, _copy_fake),
    ("record", _record, _copy_fake),
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
    ("record", _no_setup, _not_again),
    ("linear", _linear_setup, _linear_backward),
    ("conv", _conv_setup, _conv_backward),
    ("lookup", _lookup_setup, _lookup_backward),
    ("watch", _watch_setup, _watch_backward),
):
    torch.library.register_autograd(f"topkast::{_name}", _backward, setup_context=_setup, lib=_LIBRARY)
