"""Linear layers in bfloat16: products of 16-bit numbers, added up in 32 bits."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import topkast
from topkast.kernels import native
from topkast.kernels.engines import ENGINES
from topkast.kernels.plan import Plan

pytestmark = pytest.mark.skipif(
    not native.computes_bfloat16(), reason="the instruction set in use has no products of bfloat16"
)

EPS = 2.0**-8  # bfloat16 has 8 bits


def dense_alpha(plan: Plan, values: Tensor) -> Tensor:
    dense = values.new_zeros(plan.numel)
    dense[plan.active_positions] = values[plan.active_slots]
    return dense.view(plan.shape)


def operands(
    rows: int, columns: int, tokens: int, density: float, *, transpose: bool = False
) -> tuple[Plan, Tensor, Tensor, Tensor, Tensor]:
    g = torch.Generator().manual_seed(0)
    positions = torch.randperm(rows * columns, generator=g)[: max(1, round(density * rows * columns))]
    is_active = torch.rand(len(positions), generator=g) < 0.5
    plan = Plan((rows, columns), positions.sort().values, is_active)
    inputs, outputs = (rows, columns) if transpose else (columns, rows)
    sizes = ((plan.num_slots,), (tokens, inputs), (tokens, outputs), (outputs,))
    values, x, dy, bias = (torch.randn(size, generator=g).bfloat16() for size in sizes)
    return plan, values, x, dy, bias


def results(
    plan: Plan, values: Tensor, x: Tensor, dy: Tensor, bias: Tensor, *, transpose: bool = False
) -> list[Tensor]:
    engine = ENGINES["native"]
    y = engine.linear(plan, values, x, bias, transpose=transpose)
    grads = engine.linear_grads(plan, values, x, dy, (True, True, True), transpose=transpose)
    found = [y, *(grad for grad in grads if grad is not None)]
    assert [one.dtype for one in found] == [torch.bfloat16] * 4
    return found


def assert_close(got: Tensor, exact: Tensor) -> None:
    """One rounding to 8 bits, and sums of floats: far less than that."""
    torch.testing.assert_close(got.double(), exact, rtol=EPS, atol=1e-4)


@settings(max_examples=60, deadline=None)
@given(
    rows=st.integers(1, 200),
    columns=st.integers(1, 200),
    tokens=st.integers(1, 300),
    density=st.sampled_from([0.02, 0.2, 0.7, 1.0]),
    transpose=st.booleans(),
)
def test_products_are_rounded_once(
    rows: int, columns: int, tokens: int, density: float, transpose: bool
) -> None:
    plan, values, x, dy, bias = operands(rows, columns, tokens, density, transpose=transpose)
    y, dx, dvalues, dbias = results(plan, values, x, dy, bias, transpose=transpose)
    alpha = dense_alpha(plan, values.double())
    alpha = alpha if transpose else alpha.t()
    assert_close(y, x.double() @ alpha + bias.double())
    assert_close(dx, dy.double() @ alpha.t())
    left, right = (x, dy) if transpose else (dy, x)
    assert_close(dvalues, (left.double().t() @ right.double()).flatten()[plan.indices.long()])
    assert_close(dbias, dy.double().sum(0))


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize("tokens", [20, 700])
def test_bits_do_not_depend_on_the_number_of_threads(tokens: int) -> None:
    given = operands(300, 513, tokens, 0.2)
    found = []
    for count in (1, 2, 3):
        torch.set_num_threads(count)
        found.append(results(*given))
    for other in found[1:]:
        assert all(torch.equal(a, b) for a, b in zip(found[0], other, strict=True))


def test_a_plan_that_has_followed_a_change_gives_the_bits_of_a_new_one() -> None:
    plan, values, x, *_ = operands(64, 96, 200, 0.3)
    followed = native._plan(plan)
    slots = torch.randperm(plan.num_slots)[:60].sort().values
    active = plan.active.clone()
    active[slots] = ~active[slots]
    change = (slots, plan.indices[slots].long(), active[slots])
    followed.update(*(t.data_ptr() for t in change), len(slots), 1)
    y = torch.empty(200, 64, dtype=torch.bfloat16)
    values_and_x = [number for t in (values, x) for number in (t.data_ptr(), t.numel())]
    native._native.product_bfloat16(followed, False, *values_and_x, 200, 0, 0, y.data_ptr(), y.numel(), 1)
    new = Plan((64, 96), plan.indices, active)
    assert torch.equal(y, ENGINES["native"].linear(new, values, x, None, transpose=False))


def test_what_is_not_in_a_reaches_no_output() -> None:
    """An odd element is multiplied together with a zero: an infinity elsewhere must not become NaN."""
    plan = Plan((3, 4), torch.tensor([0, 5, 6, 10]), torch.tensor([True, True, False, True]))
    values = torch.tensor([1.0, 2.0, float("inf"), 3.0]).bfloat16()
    x = torch.tensor([[1.0, 1.0, 2.0, float("inf")]]).bfloat16()
    y = ENGINES["native"].linear(plan, values, x, None, transpose=False)
    assert y.tolist() == [[1.0, 2.0, 6.0]]


def test_a_layer_under_autocast_uses_them_and_its_values_keep_32_bits() -> None:
    linear = torch.nn.Linear(64, 48)
    model = torch.nn.Sequential(linear)
    sparse = topkast.sparsify(model, topkast.TopKAST(0.9, 0.8), engine="native")
    x = torch.randn(40, 64)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = model(x)
    assert y.dtype == torch.bfloat16
    y.float().square().sum().backward()
    assert [p.dtype for p in model.parameters()] == [torch.float32] * 2
    assert [p.grad.dtype for p in model.parameters() if p.grad is not None] == [torch.float32] * 2
    weight = sparse.weights["0"]
    alpha = dense_alpha(weight.plan, weight.values.detach().bfloat16().double())
    assert_close(y.detach(), x.bfloat16().double() @ alpha.t() + linear.bias.detach().bfloat16().double())
