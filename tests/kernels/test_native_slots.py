"""How compiled Plans say which slot an element has: in 16 bits, or in 32 where a row of the weight is too long."""

from __future__ import annotations

import pytest
import torch

from topkast.kernels import native
from topkast.kernels.engine import ConvGeometry
from topkast.kernels.engines import ENGINES
from topkast.kernels.plan import Plan

_native = pytest.importorskip("topkast.kernels._native", reason="the compiled core is not built")


def plan_of(shape: tuple[int, ...], positions: torch.Tensor, *, explores: bool = True) -> Plan:
    generator = torch.Generator().manual_seed(1)
    in_a = torch.rand(positions.numel(), generator=generator) < 0.5
    return Plan(shape, positions.int(), in_a, explores=explores)


def half_of(shape: tuple[int, ...]) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    numel = torch.Size(shape).numel()
    return torch.randperm(numel, generator=generator)[: numel // 2].sort().values


def assert_convolves_like_masked(
    plan: Plan, geometry: ConvGeometry, shape: tuple[int, ...], *, atol: float
) -> None:
    """Output and both gradients, for an input of this shape."""
    torch.manual_seed(0)
    values = torch.randn(plan.num_slots, dtype=torch.float64)
    x = torch.randn(shape, dtype=torch.float64)
    results = []
    for engine in (ENGINES["native"], ENGINES["masked"]):
        y = engine.conv(plan, values, x, None, geometry)
        results.append((y, *engine.conv_grads(plan, values, x, y.cos(), geometry, (True, True))))
    for ours, exact in zip(*results, strict=True):
        torch.testing.assert_close(ours, exact, rtol=1e-10, atol=atol)


@pytest.mark.parametrize("explores", [True, False])
@pytest.mark.parametrize("transpose", [False, True])
@pytest.mark.parametrize("shape", [(2, 200_000), (3, 131_072)])
def test_rows_too_long_for_16_bits_equal_masked(
    shape: tuple[int, int], transpose: bool, explores: bool
) -> None:
    plan = plan_of(shape, half_of(shape), explores=explores)
    torch.manual_seed(0)
    values = torch.randn(plan.num_slots, dtype=torch.float64)
    x = torch.randn(5, shape[0] if transpose else shape[1], dtype=torch.float64)
    results = []
    for engine in (ENGINES["native"], ENGINES["masked"]):
        y = engine.linear(plan, values, x, None, transpose=transpose)
        grads = engine.linear_grads(plan, values, x, y.cos(), (True, True, True), transpose=transpose)
        results.append((y, *grads))
    for ours, exact in zip(*results, strict=True):
        torch.testing.assert_close(ours, exact, rtol=1e-10, atol=1e-9)


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("groups", [1, 2])
def test_kernels_too_long_for_16_bits_equal_masked(groups: int, stride: int) -> None:
    """With stride 1 the input gradient gathers, with 2 it scatters."""
    shape = (2, 50_000 // groups, 3)
    geometry = ConvGeometry((stride,), (1,), (1,), groups)
    plan = plan_of(shape, torch.arange(torch.Size(shape).numel()))
    assert_convolves_like_masked(plan, geometry, (1, 50_000, 4), atol=1e-8)


def test_65536_elements_in_a_row_are_the_most_for_16_bits() -> None:
    sizes = {}
    for count in (65_536, 65_537):
        plan = plan_of((2, 70_000), 70_000 + torch.arange(count))
        sizes[count] = native._plan(plan).num_bytes
        values, x = torch.randn(count, dtype=torch.float64), torch.randn(3, 70_000, dtype=torch.float64)
        y = ENGINES["native"].linear(plan, values, x, None, transpose=False)
        expected = ENGINES["masked"].linear(plan, values, x, None, transpose=False)
        torch.testing.assert_close(y, expected, rtol=1e-10, atol=1e-9)
    in_a = 65_536 // 2
    assert sizes[65_537] - sizes[65_536] == pytest.approx(2 * 2 * in_a, rel=0.05)


@pytest.mark.parametrize("explores", [True, False])
def test_the_turned_kernel_finds_its_slots_across_blocks(explores: bool) -> None:
    """Blocks of 128 columns do not hold whole rows of 5 taps; and many rows have nothing."""
    shape, geometry = (300, 7, 5), ConvGeometry((1,), (2,), (1,), 1)
    positions = half_of(shape)
    positions = positions[(positions // 35) % 3 > 0]
    plan = plan_of(shape, positions, explores=explores)
    assert_convolves_like_masked(plan, geometry, (2, 7, 40), atol=1e-10)


def test_positions_beyond_32_bits() -> None:
    size = 70_000
    positions = torch.tensor([0, 2**31 - 1, 2**31, 2**32 + 7, size**2 - 1])
    active = torch.tensor([True, False, True, True, True])
    with pytest.raises(ValueError, match=r"must lie in \[0, 4900000000\), got 4900000000"):
        Plan((size, size), torch.tensor([0, size**2]), active[:2])
    plan = Plan((size, size), positions, active)
    assert native._plan(plan).num_bytes < size**2 / 1000  # a few for each row, tile and block
    values, x = torch.arange(1.0, 6.0), torch.randn(2, size)
    for transpose in (False, True):
        y, expected = (
            ENGINES[name].linear(plan, values, x, None, transpose=transpose) for name in ("native", "csr")
        )
        assert torch.equal(y, expected)


def test_a_compiled_plan_owns_what_it_needs() -> None:
    """It stays what it was when the sets change, though a Plan lets nobody use it then."""
    indices, active = torch.tensor([1, 4, 5]), torch.tensor([True, False, True])
    compiled = native._plan(Plan((2, 3), indices, active))
    values, x = torch.tensor([2.0, 3.0, 4.0]), torch.tensor([[1.0, 10.0, 100.0]])

    def product() -> list[list[float]]:
        y = torch.empty(1, 2)
        buffers = (values.data_ptr(), 3, x.data_ptr(), 3, 1, 0, 0, y.data_ptr(), 2, 1)
        _native.product_float(compiled, False, *buffers)
        return y.tolist()

    assert product() == [[20.0, 400.0]]
    indices.zero_()
    active.zero_()
    assert product() == [[20.0, 400.0]]
