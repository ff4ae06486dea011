"""The operators registered with torch: schema, shapes, gradients and tracing, by torch's own checks."""

from __future__ import annotations

import gc
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import topkast
from topkast.kernels.engine import ConvGeometry
from topkast.kernels.engines import ENGINES
from topkast.kernels.ops import compute, ticket
from topkast.kernels.plan import Plan
from topkast.kernels.product import Conv, Linear, Lookup, Product, product_of

OPS = torch.ops.topkast


def plan_of(*shape: int, explores: bool = True) -> tuple[Plan, Tensor]:
    n = torch.Size(shape).numel()
    positions = torch.randperm(n)[: n // 3].sort().values
    plan = Plan(shape, positions, torch.rand(n // 3) < 0.5, explores=explores)
    return plan, torch.randn(n // 3, requires_grad=True)


def call(product: Product, x: Tensor, values: Tensor, bias: Tensor | None, t: Tensor, *shape: int) -> Tensor:
    return OPS.multiply(x, values, bias, t, product.kind, product.rules(), list(shape))


def opcheck(op: object, arguments: tuple[object, ...]) -> None:
    failures = torch.library.opcheck(op, arguments, raise_exception=False)
    assert all(result == "SUCCESS" for result in failures.values()), failures


@pytest.mark.parametrize("transpose", [False, True])
@pytest.mark.parametrize("explores", [False, True])
@pytest.mark.parametrize("bias", [False, True])
def test_linear(engine: str, transpose: bool, explores: bool, bias: bool) -> None:
    plan, values = plan_of(6, 9, explores=explores)
    inputs, outputs = (6, 9) if transpose else (9, 6)
    x = torch.randn(5, inputs, requires_grad=True)
    b = torch.randn(outputs, requires_grad=True) if bias else None
    t = ticket(plan, ENGINES[engine])
    opcheck(OPS.multiply.default, (x, values, b, t, "linear", [int(transpose)], [6, 9]))
    grad = torch.randn(5, outputs)
    for needs in ([True, True, True], [False, True, False], [True, False, True]):
        opcheck(OPS.grads.default, (grad, x.detach(), values.detach(), t, "linear", [int(transpose)], needs))


@pytest.mark.parametrize("bias", [False, True])
def test_conv(engine: str, bias: bool) -> None:
    plan, values = plan_of(4, 3, 3, 3)
    x = torch.randn(2, 3, 7, 6, requires_grad=True)
    b = torch.randn(4, requires_grad=True) if bias else None
    t, rules = ticket(plan, ENGINES[engine]), [2, 1, 1, 0, 1, 2, 1]
    opcheck(OPS.multiply.default, (x, values, b, t, "conv", rules, [4, 3, 3, 3]))
    grad = torch.randn(2, 4, 4, 2)
    for needs in ([True, True, True], [False, True, False]):
        opcheck(OPS.grads.default, (grad, x.detach(), values.detach(), t, "conv", rules, needs))


@pytest.mark.parametrize(("padding_idx", "scale"), [(-1, False), (2, True)])
def test_lookup(engine: str, padding_idx: int, scale: bool) -> None:
    plan, values = plan_of(8, 5)
    ids = torch.tensor([2, 0, 7, 2, 2, 5])
    t = ticket(plan, ENGINES[engine])
    rules = Lookup(padding_idx, scale).rules()
    opcheck(OPS.multiply.default, (ids, values, None, t, "embedding", rules, [8, 5]))
    needs = [False, True, False]
    opcheck(OPS.grads.default, (torch.randn(6, 5), ids, values.detach(), t, "embedding", rules, needs))


def test_rows_that_are_not_there_are_refused_when_the_graph_runs(engine: str) -> None:
    plan, values = plan_of(8, 5)
    t = ticket(plan, ENGINES[engine])
    for bad in (-1, 8):
        with pytest.raises(IndexError, match=r"embedding ids must lie in \[0, 8\)"):
            call(Lookup(), torch.tensor([3, bad]), values, None, t, 8, 5)


@pytest.mark.parametrize("dims", [1, 2, 3])
def test_rules_say_what_a_geometry_says(dims: int) -> None:
    g = ConvGeometry((3, 1, 2)[:dims], (0, 5, 1)[:dims], (1, 2, 4)[:dims], 7)
    assert product_of("conv", Conv(g).rules()) == Conv(g)


def gradients(f: Callable[..., Tensor], *inputs: Tensor) -> list[Tensor]:
    y = f(*inputs)
    return [y, *torch.autograd.grad(y, inputs, torch.ones_like(y))]


def test_operators_equal_the_autograd_functions(engine: str) -> None:
    """Bit for bit: both call the same engine with the same numbers."""
    plan, values = plan_of(6, 9)
    x, bias = torch.randn(5, 9, requires_grad=True), torch.randn(6, requires_grad=True)
    g = ConvGeometry((1, 1), (1, 1), (1, 1), 1)
    conv_plan, conv_values = plan_of(4, 3, 3, 3)
    image = torch.randn(2, 3, 6, 6, requires_grad=True)
    rows, row_values = plan_of(8, 5)
    ids = torch.tensor([2, 0, 7, 2])
    e = ENGINES[engine]
    embedding = Lookup(2, True)
    pairs = [
        (
            gradients(lambda x, v, b: call(Linear(), x, v, b, ticket(plan, e), 6, 9), x, values, bias),
            gradients(lambda x, v, b: compute(Linear(), e, plan, v, x, b), x, values, bias),
        ),
        (
            gradients(
                lambda x, v: call(Conv(g), x, v, None, ticket(conv_plan, e), 4, 3, 3, 3), image, conv_values
            ),
            gradients(lambda x, v: compute(Conv(g), e, conv_plan, v, x), image, conv_values),
        ),
        (
            gradients(lambda v: call(embedding, ids, v, None, ticket(rows, e), 8, 5), row_values),
            gradients(lambda v: compute(embedding, e, rows, v, ids), row_values),
        ),
    ]
    for ours, theirs in pairs:
        assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))


def test_gradients_are_not_differentiable_again(engine: str) -> None:
    plan, values = plan_of(6, 9)
    x = torch.randn(5, 9, requires_grad=True)
    y = call(Linear(), x, values, None, ticket(plan, ENGINES[engine]), 6, 9)
    (grad,) = torch.autograd.grad(y.square().sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="not differentiable again"):
        grad.sum().backward()


def test_a_plan_that_is_gone_is_named() -> None:
    plan, values = plan_of(6, 9)
    t, handle = ticket(plan, ENGINES["masked"]), plan.handle
    assert Plan.of(handle) is plan
    del plan
    gc.collect()
    with pytest.raises(ValueError, match=f"no Plan has the handle {handle}"):
        call(Linear(), torch.randn(5, 9), values, None, t, 6, 9)


def test_a_weight_that_is_gone_is_named() -> None:
    x, values = torch.randn(5, 9), torch.randn(3)
    with pytest.raises(ValueError, match=r"no sparse weight has the number -1.*export `topkast.densify"):
        OPS.pick(x, values, torch.tensor(-1), "linear", [0], False)


def test_what_is_watched_and_picked_passes_too() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(9, 6))
    topkast.sparsify(model, topkast.TopKAST(0.8, 0.5))
    weight = model[0].weight
    x, y = torch.randn(5, 9), torch.randn(5, 6, requires_grad=True)
    opcheck(OPS.pick.default, (x, weight.values.detach(), weight.number, "linear", [0], False))
    opcheck(OPS.watch.default, (y, x, weight.number, "linear", [0]))
    opcheck(OPS.record.default, (y.detach(), x, weight.number, "linear", [0]))
