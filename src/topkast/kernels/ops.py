"""The way to a product: checked, cast and flattened once, then computed at once or written into a graph.

Both routes save the input and `values` for the backward pass, nothing of dense size. The gradient given to
`values` is the paper's Δ: ∇_α L restricted to B. It is deliberately *not* the derivative of the forward
pass on B∖A, where that derivative is zero.

*At once* is one autograd function. *Into a graph*, for whatever traces a model instead of running it, such as
`torch.compile`, are operators registered as ``torch.ops.topkast.*``; each costs about 100 µs more per layer.
A graph outlives Plans: sets change while it lives. So it holds the number of a weight, as a tensor whose
content no compiler looks at. By `pick` it asks for the Plan and the engine of the moment, again as numbers
in a tensor (a `ticket`). Nothing that a refresh changes may be looked at while a graph is made.
"""

from __future__ import annotations

import itertools
import weakref
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol

import torch
from torch import Tensor
from torch._C import _functorch  # pyright: ignore[reportAttributeAccessIssue]
from torch.autograd import Function, forward_ad
from torch.autograd.function import once_differentiable

from topkast.kernels.auto import NAMES, Auto
from topkast.kernels.engine import Engine
from topkast.kernels.engines import ENGINES
from topkast.kernels.plan import Plan
from topkast.kernels.product import Product, product_of


class Source(Protocol):
    """What is asked of a sparse weight here."""

    name: str
    shape: torch.Size
    number: Tensor
    wants_gradient: Any

    @property
    def plan(self) -> Plan: ...

    def engine_impl(self) -> Engine | Auto: ...

    def used(self) -> Tensor:
        """What the products compute with, by slot."""
        ...

    def prepare_tape(self) -> None:
        """Called in a forward pass whose dense gradient may be wanted."""

    def record(self, product: Product, x: Tensor, grad: Tensor) -> None:
        """Called in its backward pass with the layer's flat input and the gradient of its output."""


def multiply(source: Source, product: Product, x: Tensor, bias: Tensor | None = None) -> Tensor:
    """The product of a sparse weight with an input, plus bias.

    Raises:
        ValueError: The input does not fit the weight, in shape, dtype or device.
        IndexError: An id is not a row.
        RuntimeError: Within a transform or a recorder that does not see our kernels.
    """
    if torch.compiler.is_compiling():
        return _into_graph(source, product, x, bias)
    _check_transforms(source)
    return compute(product, source.engine_impl(), source.plan, source.used(), x, bias, source=source)


# ---- what both routes share -------------------------------------------------------------------------------


def _operands(
    product: Product, x: Tensor, values: Tensor, bias: Tensor | None
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Cast where autocast is on, as torch does for its own layers; then of one dtype, on one device."""
    if not product.casts:
        return x, values, bias
    if _is_autocast_on(x.device.type):
        dtype = torch.get_autocast_dtype(x.device.type)
        x, values = _cast(x, dtype), _cast(values, dtype)
        bias = None if bias is None else _cast(bias, dtype)
    for name, other in (("weight", values), ("bias", bias)):
        if other is not None and (other.dtype is not x.dtype or other.device != x.device):
            raise ValueError(
                f"the input ({x.dtype} on {x.device}) and the {name} ({other.dtype} on {other.device}) "
                "must have the same dtype and device; cast one of them, or use torch.autocast"
            )
    return x, values, bias


def _cast(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    return tensor if tensor.dtype == torch.float64 else tensor.to(dtype)  # torch leaves float64 alone too


def _is_autocast_on(device_type: str) -> bool:
    """Whether autocast is on; some devices, such as meta, have none and would raise."""
    if not torch._C._is_any_autocast_enabled():
        return False
    return torch.amp.is_autocast_available(device_type) and torch.is_autocast_enabled(device_type)


_NOTHING = nullcontext()


def _no_autocast(x: Tensor) -> AbstractContextManager[Any]:
    """Engines get what they are given: casting is done before, not inside their products."""
    device = x.device.type
    return torch.autocast(device, enabled=False) if _is_autocast_on(device) else _NOTHING


# ---- at once ----------------------------------------------------------------------------------------------


def compute(
    product: Product,
    engine: Engine | Auto,
    plan: Plan,
    values: Tensor,
    x: Tensor,
    bias: Tensor | None = None,
    *,
    source: Source | None = None,
) -> Tensor:
    """The product with the given Plan and engine, known to autograd; `source` may want its dense gradient."""
    flat, values, bias = _operands(product, product.flat(x, plan.shape), values, bias)
    if isinstance(engine, Auto):
        with _no_autocast(flat):
            is_training = torch.is_grad_enabled() and values.requires_grad
            engine = engine.pick(product, plan, values, flat, is_training=is_training)
    if _is_alone():
        with _no_autocast(flat):
            return product.shaped(product.compute_alone(engine, plan, values, flat, bias), x)
    y = _Multiply.apply(flat, values, bias, product, engine, plan)
    if source is not None and source.wants_gradient is not None:
        source.prepare_tape()
        if y.requires_grad:
            y.register_hook(lambda grad: source.record(product, flat.detach(), grad.detach()))
    return product.shaped(y, x)


class _Multiply(Function):
    @staticmethod
    def forward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any,
        x: Tensor,
        values: Tensor,
        bias: Tensor | None,
        product: Product,
        engine: Engine,
        plan: Plan,
    ) -> Tensor:
        ctx.save_for_backward(x, values if product.needs_values else None)
        ctx.product, ctx.engine, ctx.plan = product, engine, plan
        with _no_autocast(x):
            return product.compute(engine, plan, values, x, bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        x, values = ctx.saved_tensors
        with _no_autocast(x):
            grads = ctx.product.grads(ctx.engine, ctx.plan, values, x, grad, ctx.needs_input_grad[:3])
        return (*grads, None, None, None)


def _is_alone() -> bool:
    """Whether nobody can want a derivative of what is computed now: then autograd need not know of it."""
    if torch.is_grad_enabled():
        return False
    return forward_ad._current_level < 0 and not torch._C._are_functorch_transforms_active()


def _check_transforms(source: Source) -> None:
    """Raises where kernels do not see through the tensors: torch.func's transforms, and recorders."""
    if torch._C._get_tracing_state() is not None or torch._C._len_torch_dispatch_stack():
        _check_recorders(source)
    if _functorch.maybe_current_level() is not None:
        raise RuntimeError(
            f"the sparse layer {source.name!r} cannot take part in torch.func's transforms (grad, vmap, "
            "jacrev, …); torch.func.functional_call alone works, together with torch.autograd.grad"
        )


def _check_recorders(source: Source) -> None:
    """Raises within what records tensor operations and would miss ours: the record would be wrong."""
    from torch.fx.experimental.proxy_tensor import get_proxy_mode

    if torch._C._get_tracing_state() is not None or get_proxy_mode() is not None:
        raise RuntimeError(
            f"the sparse layer {source.name!r} cannot be recorded by torch.jit.trace, make_fx or the "
            "TorchScript ONNX exporter, which do not see its kernels. Record `topkast.densify(model)`, a "
            "plain torch copy; or use torch.export or torch.compile, which know sparse layers"
        )


# ---- into a graph -----------------------------------------------------------------------------------------

_numbers = itertools.count()
_living: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()


def register(source: Source) -> Tensor:
    """The number of a new source. Nobody is kept alive by it.

    It is a tensor, since a compiler takes the content of a tensor as it comes and would compile anew for
    every other int.
    """
    number = next(_numbers)
    _living[number] = source
    return torch.tensor(number, dtype=torch.int64, device="cpu")


def _source_of(number: Tensor) -> Source:
    source = _living.get(int(number))
    if source is None:
        raise ValueError(
            f"no sparse weight has the number {int(number)}: it is gone, or of another process. A graph of a "
            "sparse model lives in the process that made it; export `topkast.densify(model)`"
        )
    return source


def ticket(plan: Plan, engine: Engine) -> Tensor:
    """What stands for a Plan and an engine in a graph."""
    return torch.tensor([plan.handle, NAMES.index(engine.name)], dtype=torch.int64, device="cpu")


def _read(ticket: Tensor) -> tuple[Plan, Engine]:
    handle, code = ticket.tolist()
    return Plan.of(handle), ENGINES[NAMES[code]]


def _into_graph(source: Source, product: Product, x: Tensor, bias: Tensor | None) -> Tensor:
    shape, kind, rules = list(source.shape), product.kind, product.rules()
    flat, values, bias = _operands(product, product.flat(x, source.shape), source.used(), bias)
    is_training = torch.is_grad_enabled() and values.requires_grad
    ops = torch.ops.topkast
    ticket = ops.pick(flat.detach(), values.detach(), source.number, kind, rules, is_training)
    y = ops.multiply(flat, values, bias, ticket, kind, rules, shape)
    if source.wants_gradient is not None and y.requires_grad:
        y = ops.watch(y, flat.detach(), source.number, kind, rules)
    return product.shaped(y, x)


def _pick(x: Tensor, values: Tensor, source: Tensor, kind: str, rules: list[int], measures: bool) -> Tensor:
    weight = _source_of(source)
    plan, engine = weight.plan, weight.engine_impl()
    if isinstance(engine, Auto):
        with _no_autocast(x):
            engine = engine.pick(product_of(kind, rules), plan, values, x, is_training=measures)
    return ticket(plan, engine)


def _pick_fake(x: Tensor, values: Tensor, source: Tensor, *_: Any) -> Tensor:
    return torch.empty(2, dtype=torch.int64, device="cpu")


def _multiply(
    x: Tensor,
    values: Tensor,
    bias: Tensor | None,
    ticket: Tensor,
    kind: str,
    rules: list[int],
    shape: list[int],
) -> Tensor:
    plan, engine = _read(ticket)
    with _no_autocast(x):
        return product_of(kind, rules).compute(engine, plan, values, x, bias)


def _multiply_fake(
    x: Tensor,
    values: Tensor,
    bias: Tensor | None,
    ticket: Tensor,
    kind: str,
    rules: list[int],
    shape: list[int],
) -> Tensor:
    return values.new_empty(product_of(kind, rules).output_shape(x, tuple(shape)))


def _multiply_setup(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    x, values, _bias, ticket, ctx.kind, ctx.rules, _shape = inputs
    ctx.save_for_backward(x, values, ticket)


def _multiply_backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    needs = list(ctx.needs_input_grad[:3])
    grads = torch.ops.topkast.grads(grad, *ctx.saved_tensors, ctx.kind, ctx.rules, needs)
    return (*(g if needed else None for g, needed in zip(grads, needs, strict=True)), *[None] * 4)


def _grads(
    grad: Tensor, x: Tensor, values: Tensor, ticket: Tensor, kind: str, rules: list[int], needs: list[bool]
) -> tuple[Tensor, ...]:
    plan, engine = _read(ticket)
    wanted = (needs[0], needs[1], needs[2])
    with _no_autocast(x):
        grads = product_of(kind, rules).grads(engine, plan, values, x, grad, wanted)
    # An operator cannot return None: what was not wanted is an empty tensor.
    return tuple(grad.new_empty(0) if g is None else g for g in grads)


def _grads_fake(
    grad: Tensor, x: Tensor, values: Tensor, ticket: Tensor, kind: str, rules: list[int], needs: list[bool]
) -> tuple[Tensor, ...]:
    shapes = (x.shape, values.shape, grad.shape[1:2])
    return tuple(grad.new_empty(s if n else (0,)) for s, n in zip(shapes, needs, strict=True))


# The dense gradient, for methods that grow by it. Both give back what they are given, as a copy: an operator
# must not return its argument, and one whose result nobody used would be left out of the graph.


def _watch(y: Tensor, x: Tensor, source: Tensor, kind: str, rules: list[int]) -> Tensor:
    _source_of(source).prepare_tape()
    return y.clone()


def _watch_setup(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    _y, x, source, *ctx.rest = inputs
    ctx.save_for_backward(x, source)


def _watch_backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    return (torch.ops.topkast.record(grad, *ctx.saved_tensors, *ctx.rest), *[None] * 4)


def _record(grad: Tensor, x: Tensor, source: Tensor, kind: str, rules: list[int]) -> Tensor:
    _source_of(source).record(product_of(kind, rules), x, grad)
    return grad.clone()


def _copy_fake(y: Tensor, *_: Any) -> Tensor:
    return torch.empty_like(y)


def _no_setup(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    pass


def _not_again(ctx: Any, *grads: Any) -> None:
    raise RuntimeError(
        "the gradients of topkast's layers are not differentiable again: on B∖A they are not the derivative "
        "of the forward pass to begin with"
    )


_LIBRARY = torch.library.Library("topkast", "DEF")
_WHAT = "str kind, int[] rules"
_OPERATORS = (
    (f"pick(Tensor x, Tensor values, Tensor source, {_WHAT}, bool measures) -> Tensor", _pick, _pick_fake),
    (
        f"multiply(Tensor x, Tensor values, Tensor? bias, Tensor ticket, {_WHAT}, int[] shape) -> Tensor",
        _multiply,
        _multiply_fake,
    ),
    (
        f"grads(Tensor grad, Tensor x, Tensor values, Tensor ticket, {_WHAT}, bool[] needs)"
        " -> (Tensor, Tensor, Tensor)",
        _grads,
        _grads_fake,
    ),
    (f"watch(Tensor y, Tensor x, Tensor source, {_WHAT}) -> Tensor", _watch, _copy_fake),
    (f"record(Tensor grad, Tensor x, Tensor source, {_WHAT}) -> Tensor", _record, _copy_fake),
)
for _schema, _implementation, _fake in _OPERATORS:
    _name = _LIBRARY.define(_schema)
    _LIBRARY.impl(_name, _implementation, "CompositeExplicitAutograd")
    torch.library.register_fake(f"topkast::{_name}", _fake, lib=_LIBRARY)

for _name, _setup, _backward in (
    ("multiply", _multiply_setup, _multiply_backward),
    ("grads", _no_setup, _not_again),
    ("watch", _watch_setup, _watch_backward),
    ("record", _no_setup, _not_again),
):
    torch.library.register_autograd(f"topkast::{_name}", _backward, setup_context=_setup, lib=_LIBRARY)
