"""Every engine against the definition, written with dense tensors in float64."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from topkast.kernels.engine import ConvGeometry
from topkast.kernels.engines import ENGINES
from topkast.kernels.ops import compute
from topkast.kernels.plan import Plan
from topkast.kernels.product import Conv, Linear, Lookup

CONV = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}


def random_plan(shape: tuple[int, ...], density: float, generator: torch.Generator, explores: bool) -> Plan:
    n = torch.Size(shape).numel()
    size = max(1, round(density * n))
    positions = torch.randperm(n, generator=generator)[:size].sort().values
    return Plan(shape, positions, torch.rand(size, generator=generator) < 0.5, explores=explores)


def dense_alpha(plan: Plan, values: Tensor) -> Tensor:
    dense = torch.zeros(plan.numel, dtype=values.dtype)
    dense[plan.active_positions] = values[plan.active_slots]
    return dense.view(plan.shape)


def expected_grad(plan: Plan, dense_grad: Tensor) -> Tensor:
    """Δ: the dense gradient on the updated elements of B, zero in other slots."""
    out = dense_grad.flatten()[plan.positions]
    if not plan.explores:
        frozen = torch.ones(plan.num_slots, dtype=torch.bool)
        frozen[plan.active_slots] = False
        out[frozen] = 0
    return out


sizes = st.integers(1, 9)
densities = st.sampled_from([0.02, 0.2, 0.5, 1.0])


@given(sizes, sizes, st.integers(0, 9), densities, st.booleans(), st.booleans(), st.integers(0, 99))
@pytest.mark.parametrize("engine", sorted(ENGINES))
def test_linear_equals_the_definition(
    engine: str,
    rows: int,
    columns: int,
    tokens: int,
    density: float,
    transpose: bool,
    explores: bool,
    seed: int,
) -> None:
    g = torch.Generator().manual_seed(seed)
    plan = random_plan((rows, columns), density, g, explores)
    values = torch.randn(plan.num_slots, generator=g, dtype=torch.float64, requires_grad=True)
    inputs, outputs = (rows, columns) if transpose else (columns, rows)
    x = torch.randn(tokens, inputs, generator=g, dtype=torch.float64, requires_grad=True)
    bias = torch.randn(outputs, generator=g, dtype=torch.float64, requires_grad=True)
    upstream = torch.randn(tokens, outputs, generator=g, dtype=torch.float64)

    y = compute(Linear(transpose), ENGINES[engine], plan, values, x, bias)
    grads = torch.autograd.grad(y, (x, values, bias), upstream)

    alpha = dense_alpha(plan, values.detach())
    weight = alpha.t() if transpose else alpha
    dense_grad = x.detach().t() @ upstream if transpose else upstream.t() @ x.detach()
    torch.testing.assert_close(y, x @ weight.t() + bias, atol=1e-12, rtol=1e-12)
    torch.testing.assert_close(grads[0], upstream @ weight, atol=1e-12, rtol=1e-12)
    torch.testing.assert_close(grads[1], expected_grad(plan, dense_grad), atol=1e-12, rtol=1e-12)
    torch.testing.assert_close(grads[2], upstream.sum(0), atol=1e-12, rtol=1e-12)


@given(
    dims=st.integers(1, 3),
    kernel=st.integers(1, 3),
    stride=st.integers(1, 3),
    padding=st.integers(0, 2),
    dilation=st.integers(1, 2),
    groups=st.sampled_from([1, 2]),
    density=densities,
    seed=st.integers(0, 99),
)
@pytest.mark.parametrize("engine", sorted(ENGINES))
def test_conv_equals_the_definition(
    engine: str,
    dims: int,
    kernel: int,
    stride: int,
    padding: int,
    dilation: int,
    groups: int,
    density: float,
    seed: int,
) -> None:
    geometry = ConvGeometry((stride,) * dims, (padding,) * dims, (dilation,) * dims, groups)
    if ENGINES[engine].refusal("conv", geometry, "cpu") is not None:
        return
    g = torch.Generator().manual_seed(seed)
    plan = random_plan((4, 3, *(kernel,) * dims), density, g, explores=True)
    values = torch.randn(plan.num_slots, generator=g, dtype=torch.float64, requires_grad=True)
    x = torch.randn(2, 3 * groups, *range(6, 6 + dims), generator=g, dtype=torch.float64, requires_grad=True)
    bias = torch.randn(4, generator=g, dtype=torch.float64, requires_grad=True)
    weight = dense_alpha(plan, values.detach()).requires_grad_()
    expected = CONV[dims](x, weight, bias, stride, padding, dilation, groups)
    upstream = torch.randn(expected.shape, generator=g, dtype=torch.float64)
    dense = torch.autograd.grad(expected, (x, weight, bias), upstream)

    y = compute(Conv(geometry), ENGINES[engine], plan, values, x, bias)
    grads = torch.autograd.grad(y, (x, values, bias), upstream)

    torch.testing.assert_close(y, expected, atol=1e-11, rtol=1e-11)
    torch.testing.assert_close(grads[0], dense[0], atol=1e-11, rtol=1e-11)
    torch.testing.assert_close(grads[1], expected_grad(plan, dense[1]), atol=1e-11, rtol=1e-11)
    torch.testing.assert_close(grads[2], dense[2], atol=1e-11, rtol=1e-11)


@given(
    sizes,
    sizes,
    st.lists(st.integers(0, 8), max_size=12),
    densities,
    st.booleans(),
    st.booleans(),
    st.integers(0, 99),
)
@pytest.mark.parametrize("engine", sorted(ENGINES))
def test_embedding_equals_the_definition(
    engine: str,
    rows: int,
    columns: int,
    ids: list[int],
    density: float,
    pads: bool,
    by_frequency: bool,
    seed: int,
) -> None:
    g = torch.Generator().manual_seed(seed)
    plan = random_plan((rows, columns), density, g, explores=True)
    values = torch.randn(plan.num_slots, generator=g, dtype=torch.float64, requires_grad=True)
    tokens = torch.tensor([i % rows for i in ids], dtype=torch.int64)
    weight = dense_alpha(plan, values.detach()).requires_grad_()
    padding_idx = 0 if pads else None
    expected = F.embedding(tokens, weight, padding_idx, scale_grad_by_freq=by_frequency)
    upstream = torch.randn(expected.shape, generator=g, dtype=torch.float64)
    (dense,) = torch.autograd.grad(expected, weight, upstream)

    y = compute(Lookup(0 if pads else -1, by_frequency), ENGINES[engine], plan, values, tokens)
    (grad,) = torch.autograd.grad(y, values, upstream)
    assert torch.equal(y, expected)
    torch.testing.assert_close(grad, expected_grad(plan, dense), atol=1e-12, rtol=1e-12)


def test_gradcheck_where_the_gradient_is_a_derivative(engine: str) -> None:
    """On A the given gradient is the derivative of the output, so B = A passes gradcheck."""
    g = torch.Generator().manual_seed(0)
    positions = torch.randperm(30, generator=g)[:11].sort().values
    plan = Plan((5, 6), positions, torch.ones(11, dtype=torch.bool))
    values = torch.randn(11, dtype=torch.float64, requires_grad=True)
    x = torch.randn(4, 6, dtype=torch.float64, requires_grad=True)
    bias = torch.randn(5, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(
        lambda v, x, b: compute(Linear(), ENGINES[engine], plan, v, x, b), (values, x, bias)
    )
    conv = Plan((5, 2, 3), positions, torch.ones(11, dtype=torch.bool))
    signal = torch.randn(2, 2, 7, dtype=torch.float64, requires_grad=True)
    geometry = ConvGeometry((2,), (1,), (1,), 1)
    assert torch.autograd.gradcheck(
        lambda v, x, b: compute(Conv(geometry), ENGINES[engine], conv, v, x, b), (values, signal, bias)
    )
    ids = torch.tensor([0, 4, 4, 2])
    assert torch.autograd.gradcheck(lambda v: compute(Lookup(), ENGINES[engine], plan, v, ids), (values,))


def test_inputs_of_any_rank_and_layout(engine: str) -> None:
    g = torch.Generator().manual_seed(0)
    plan = random_plan((5, 6), 0.5, g, explores=True)
    values = torch.randn(plan.num_slots, generator=g)
    alpha = dense_alpha(plan, values)
    for x in (torch.randn(6), torch.randn(2, 3, 6), torch.randn(6, 4).t(), torch.randn(1, 6).expand(7, 6)):
        torch.testing.assert_close(compute(Linear(), ENGINES[engine], plan, values, x), F.linear(x, alpha))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_as_exact_as_its_dtype(engine: str, dtype: torch.dtype) -> None:
    g = torch.Generator().manual_seed(0)
    plan = random_plan((8, 32), 0.5, g, explores=True)
    values = torch.randn(plan.num_slots, generator=g).to(dtype).requires_grad_()
    x = torch.randn(16, 32, generator=g).to(dtype)
    y = compute(Linear(), ENGINES[engine], plan, values, x)
    assert y.dtype == dtype
    exact = x.double() @ dense_alpha(plan, values.detach().double()).t()
    # One rounding of the result, products summed in at least this precision.
    torch.testing.assert_close(
        y.double(), exact, rtol=4 * torch.finfo(dtype).eps, atol=32 * torch.finfo(dtype).eps
    )
    y.sum().backward()
    assert values.grad is not None
    assert values.grad.dtype == dtype


def test_autocast_computes_in_its_dtype_and_keeps_float32_gradients(engine: str) -> None:
    g = torch.Generator().manual_seed(0)
    plan = random_plan((8, 32), 0.5, g, explores=True)
    values = torch.randn(plan.num_slots, generator=g, requires_grad=True)
    x = torch.randn(16, 32, generator=g)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = compute(Linear(), ENGINES[engine], plan, values, x)
    assert y.dtype == torch.bfloat16
    y.float().square().sum().backward()
    assert values.grad is not None
    assert values.grad.dtype == torch.float32


@pytest.mark.parametrize(
    ("x", "values", "bias", "message"),
    [
        (
            torch.float32,
            torch.float64,
            torch.float32,
            r"input \(torch.float32 on cpu\) and the weight \(torch.float64",
        ),
        (
            torch.float64,
            torch.float32,
            torch.float32,
            r"input \(torch.float64 on cpu\) and the weight \(torch.float32",
        ),
        (
            torch.float32,
            torch.float32,
            torch.float64,
            r"input \(torch.float32 on cpu\) and the bias \(torch.float64",
        ),
        (torch.bfloat16, torch.float32, torch.float32, r"input \(torch.bfloat16 on cpu\) and the weight"),
    ],
)
def test_operands_of_different_types_are_refused(
    engine: str, x: torch.dtype, values: torch.dtype, bias: torch.dtype, message: str
) -> None:
    flat = Plan((5, 6), torch.tensor([0, 7]), torch.ones(2, dtype=torch.bool))
    conv = Plan((5, 2, 3), torch.tensor([0, 7]), torch.ones(2, dtype=torch.bool))
    v, b = torch.zeros(2, dtype=values), torch.zeros(5, dtype=bias)
    with pytest.raises(ValueError, match=message):
        compute(Linear(), ENGINES[engine], flat, v, torch.zeros(3, 6, dtype=x), b)
    with pytest.raises(ValueError, match=message):
        compute(
            Conv(ConvGeometry((1,), (0,), (1,), 1)),
            ENGINES[engine],
            conv,
            v,
            torch.zeros(1, 2, 8, dtype=x),
            b,
        )


def test_an_input_on_another_device_is_refused(engine: str) -> None:
    plan = Plan((5, 6), torch.tensor([0, 7]), torch.ones(2, dtype=torch.bool))
    with pytest.raises(
        ValueError, match=r"input \(torch.float32 on meta\) and the weight \(torch.float32 on cpu\)"
    ):
        compute(Linear(), ENGINES[engine], plan, torch.zeros(2), torch.zeros(3, 6, device="meta"))


def test_wrong_input_shapes_are_named(engine: str) -> None:
    plan = Plan((5, 6), torch.tensor([0, 7]), torch.ones(2, dtype=torch.bool))
    values = torch.zeros(2)
    with pytest.raises(ValueError, match=r"last dimension must be 6, got input of shape \(3, 5\)"):
        compute(Linear(), ENGINES[engine], plan, values, torch.zeros(3, 5))
    conv = Plan((5, 2, 3), torch.tensor([0, 7]), torch.ones(2, dtype=torch.bool))
    with pytest.raises(ValueError, match=r"\[batch,\] 2 channels, 1 spatial dimensions\), got .*\(1, 3, 8\)"):
        compute(Conv(ConvGeometry((1,), (0,), (1,), 1)), ENGINES[engine], conv, values, torch.zeros(1, 3, 8))


@pytest.mark.parametrize("ids", [[5], [-1], [0, 99]])
def test_embedding_ids_out_of_range_are_refused(engine: str, ids: list[int]) -> None:
    plan = Plan((5, 6), torch.tensor([0, 7]), torch.ones(2, dtype=torch.bool))
    with pytest.raises(IndexError, match=r"embedding ids must lie in \[0, 5\)"):
        compute(Lookup(), ENGINES[engine], plan, torch.zeros(2), torch.tensor(ids))
    with pytest.raises(TypeError, match="int32 or int64, got torch.float32"):
        compute(Lookup(), ENGINES[engine], plan, torch.zeros(2), torch.tensor([0.0]))
