"""The compiled core: equal to its slow twin, the same for every number of threads, closed to bad input."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import topkast
from topkast.kernels import native
from topkast.kernels.auto import usable_engines
from topkast.kernels.engine import ConvGeometry
from topkast.kernels.engines import ENGINES, check_engine, why_not
from topkast.kernels.plan import Plan

_native = pytest.importorskip("topkast.kernels._native", reason="the compiled core is not built")


def random_plan(rows: int, columns: int, density: float, seed: int = 0) -> tuple[Plan, torch.Tensor]:
    g = torch.Generator().manual_seed(seed)
    n = rows * columns
    positions = torch.randperm(n, generator=g)[: max(1, round(density * n))].sort().values
    plan = Plan((rows, columns), positions, torch.rand(len(positions), generator=g) < 0.5)
    return plan, torch.randn(len(positions), generator=g)


# Rows and columns around the sizes of tiles (64, 256) and blocks (128, 256, 512), tokens around panels of 64.
@pytest.mark.parametrize("rows", [1, 63, 257])
@pytest.mark.parametrize("columns", [1, 129, 600])
@pytest.mark.parametrize("density", [0.01, 0.06, 0.5])
def test_float32_equals_masked_across_tiles_blocks_and_panels(
    rows: int, columns: int, density: float
) -> None:
    plan, values = random_plan(rows, columns, density)
    for tokens in (1, 7, 8, 9, 31, 64, 65, 200):
        for transpose in (False, True):
            inputs, outputs = (rows, columns) if transpose else (columns, rows)
            x, grad, bias = torch.randn(tokens, inputs), torch.randn(tokens, outputs), torch.randn(outputs)
            results = []
            for name, dtype in (("native", torch.float32), ("masked", torch.float64)):
                engine = ENGINES[name]
                v, b = values.to(dtype), bias.to(dtype)
                y = engine.linear(plan, v, x.to(dtype), b, transpose=transpose)
                grads = engine.linear_grads(
                    plan, v, x.to(dtype), grad.to(dtype), (True, True, True), transpose=transpose
                )
                results.append((y, *grads))
            # Sums of at most `length` products of normal numbers, rounded in float32.
            length = max(rows, columns, tokens)
            for ours, exact in zip(*results, strict=True):
                torch.testing.assert_close(ours.double(), exact, rtol=1e-5, atol=2e-6 * length**0.5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("tokens", [5, 64, 300, 700])
@pytest.mark.usefixtures("threads")
def test_results_are_the_same_to_the_last_bit_for_every_number_of_threads(
    dtype: torch.dtype, tokens: int
) -> None:
    plan, values = random_plan(300, 520, 0.1)
    values = values.to(dtype)
    x, grad = torch.randn(tokens, 520, dtype=dtype), torch.randn(tokens, 300, dtype=dtype)
    results = []
    for count in (1, 2, 3, 5):  # up to 4 take whole lanes of the weight gradient, more share them
        torch.set_num_threads(count)
        y = ENGINES["native"].linear(plan, values, x, None, transpose=False)
        grads = ENGINES["native"].linear_grads(plan, values, x, grad, (True, True, True), transpose=False)
        results.append((y, *grads))
    for other in results[1:]:
        for first, second in zip(results[0], other, strict=True):
            assert torch.equal(first, second)


@pytest.mark.parametrize("batch", [3, 40])  # less than a vector of images, and many groups of bands
@pytest.mark.parametrize("stride", [(2, 1), (1, 1)])
@pytest.mark.parametrize("kernel", [1, 3])
@pytest.mark.usefixtures("threads")
def test_convolutions_are_the_same_to_the_last_bit_for_every_number_of_threads(
    kernel: int, stride: tuple[int, int], batch: int
) -> None:
    geometry = ConvGeometry(stride, (kernel // 2, kernel // 2), (1, 1), 2)
    positions = torch.randperm(24 * 6 * kernel**2)[: 60 * kernel].sort().values
    plan = Plan((24, 6, kernel, kernel), positions, torch.rand(len(positions)) < 0.5)
    values, x = torch.randn(len(positions)), torch.randn(batch, 12, 17, 19)
    engine = ENGINES["native"]
    grad = torch.randn_like(engine.conv(plan, values, x, None, geometry))
    results = []
    for count in (1, 2, 3, 5):  # up to 4 take whole lanes of the weight gradient, more share them
        torch.set_num_threads(count)
        y = engine.conv(plan, values, x, None, geometry)
        results.append((y, *engine.conv_grads(plan, values, x, grad, geometry, (True, True))))
    for other in results[1:]:
        for first, second in zip(results[0], other, strict=True):
            assert torch.equal(first, second)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_convolutions_of_any_geometry_equal_masked(data: st.DataObject) -> None:
    """Strides that scatter and that gather, padding beyond the kernel's reach, images of less than a panel.

    Batches of less and of more than a vector of images; a single row of pixels, which is cut by columns.
    """

    def pair(low: int, high: int) -> tuple[int, int]:
        return data.draw(st.integers(low, high)), data.draw(st.integers(low, high))

    groups = data.draw(st.sampled_from([1, 1, 2]))
    kernel, space, batch = pair(1, 3), pair(5, 12), data.draw(st.sampled_from([0, 1, 2, 3, 9, 17]))
    geometry = ConvGeometry(pair(1, 3), pair(0, 3), pair(1, 2), groups)
    if data.draw(st.booleans()):  # one row
        kernel, space = (1, kernel[1]), (1, data.draw(st.sampled_from([7, 40, 150])))
        geometry = ConvGeometry((1, geometry.stride[1]), (0, geometry.padding[1]), geometry.dilation, groups)
    shape = (2 * groups, 3, *kernel)
    n = torch.Size(shape).numel()
    torch.manual_seed(data.draw(st.integers(0, 99)))
    positions = torch.randperm(n)[: max(1, n // 2)].sort().values
    plan = Plan(shape, positions, torch.rand(len(positions)) < 0.7)
    x = torch.randn(batch, 3 * groups, *space, dtype=torch.float64)
    values = torch.randn(len(positions), dtype=torch.float64)
    results = []
    for engine in (ENGINES["native"], ENGINES["masked"]):
        y = engine.conv(plan, values, x, None, geometry)
        results.append((y, *engine.conv_grads(plan, values, x, y.cos(), geometry, (True, True))))
    for ours, exact in zip(*results, strict=True):
        torch.testing.assert_close(ours, exact, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("kernel", [1, 3])
def test_large_outputs_are_written_past_the_caches(kernel: int, stride: int) -> None:
    """More than 16 MB of y and of dx, rows of which none begins at a line of the cache."""
    shape, count = (48, 48, kernel, kernel), 300 * kernel
    positions = torch.arange(count) * 7
    plan = Plan(shape, positions, torch.ones(count, dtype=torch.bool))
    geometry = ConvGeometry((stride, stride), (kernel // 2, kernel // 2), (1, 1), 1)
    x, values = torch.randn(26, 48, 59 * stride, 61 * stride), torch.randn(count)
    results = []
    for engine in (ENGINES["native"], ENGINES["masked"]):
        y = engine.conv(plan, values, x, None, geometry)
        results.append((y, *engine.conv_grads(plan, values, x, y.cos(), geometry, (True, True))))
    assert results[0][0].nbytes > 2**24
    for ours, exact, atol in zip(*results, (1e-4, 1e-4, 0.1), strict=True):
        torch.testing.assert_close(ours, exact, rtol=1e-4, atol=atol)


@pytest.mark.parametrize("kernel", [1, 3])
def test_inputs_that_no_output_has_read_get_a_gradient_of_zero(kernel: int) -> None:
    """As many outputs as inputs, half of which fall into the padding. dx is full of NaN before."""
    padding = 3 + kernel // 2
    geometry = ConvGeometry((2, 2), (padding, padding), (1, 1), 1)
    plan = Plan((4, 2, kernel, kernel), torch.arange(8 * kernel**2), torch.arange(8 * kernel**2) >= 0)
    values, x, y = torch.randn(8 * kernel**2), torch.randn(1, 2, 7, 7), torch.randn(1, 4, 7, 7)
    dx = torch.full_like(x, float("nan"))
    buffers = [b for t in (values, x, y, dx) for b in (t.data_ptr(), t.numel())]
    sizes = (1, 2, 7, 7, 7, 7, kernel, kernel, 2, 2, padding, padding, 1, 1)
    _native.conv_backward_float(native._plan(plan, geometry), sizes, *buffers, 0, 0, 1)
    exact, _ = ENGINES["masked"].conv_grads(plan, values, x, y, geometry, (True, False))
    torch.testing.assert_close(dx, exact)


def test_a_plan_that_gathers_refuses_what_it_cannot_gather() -> None:
    """Straight at the compiled core, past the choice in Python."""
    plan = Plan((4, 2, 3, 3), torch.tensor([0, 40, 71]), torch.ones(3, dtype=torch.bool))
    compiled = native._plan(plan, ConvGeometry((1, 1), (1, 1), (1, 1), 1))
    values, x = torch.zeros(3), torch.zeros(1, 2, 9, 9)

    def backward(*sizes: int) -> None:
        y = torch.zeros(1, 4, *sizes[4:6])
        buffers = [b for t in (values, x, y, x) for b in (t.data_ptr(), t.numel())]
        _native.conv_backward_float(compiled, sizes, *buffers, 0, 0, 1)

    backward(1, 2, 9, 9, 9, 9, 3, 3, 1, 1, 1, 1, 1, 1)
    with pytest.raises(ValueError, match="needs stride 1"):
        backward(1, 2, 9, 9, 5, 5, 3, 3, 2, 2, 1, 1, 1, 1)
    with pytest.raises(ValueError, match="padding within the kernel's reach"):
        backward(1, 2, 9, 9, 13, 13, 3, 3, 1, 1, 3, 3, 1, 1)
    with pytest.raises(ValueError, match="whole output"):
        backward(1, 2, 9, 9, 8, 8, 3, 3, 1, 1, 1, 1, 1, 1)
    with pytest.raises(ValueError, match="more than one tap"):
        _native.product_float(
            compiled, False, values.data_ptr(), 3, x.data_ptr(), 18, 1, 0, 0, x.data_ptr(), 4, 1
        )


@pytest.mark.parametrize(
    ("place", "wrong", "message"),
    [
        (0, -1, "out of range: -1"),
        (1, 5, "does not fit its Plan"),
        (4, 9, "larger than its input allows"),
        (5, 9, "larger than its input allows"),
        (6, 2, "larger than its input allows|does not fit its Plan"),
        (8, 0, "stride and dilation must be at least 1"),
        (12, 0, "stride and dilation must be at least 1"),
        (2, 2**40, "out of range"),
    ],
)
def test_geometries_that_would_read_outside_are_refused(place: int, wrong: int, message: str) -> None:
    """Straight at the compiled core, past the checks in Python."""
    plan = Plan((4, 2, 3, 3), torch.tensor([0, 40, 71]), torch.ones(3, dtype=torch.bool))
    compiled = native._plan(plan)
    values, x, y = torch.zeros(3), torch.zeros(1, 2, 8, 8), torch.zeros(1, 4, 6, 6)
    good = [1, 2, 8, 8, 6, 6, 3, 3, 1, 1, 0, 0, 1, 1]
    buffers = (values.data_ptr(), 3, x.data_ptr(), x.numel(), 0, 0, y.data_ptr(), y.numel(), 1)
    _native.conv_float(compiled, good, *buffers)
    bad = list(good)
    bad[place] = wrong
    with pytest.raises(ValueError, match=message):
        _native.conv_float(compiled, bad, *buffers)


def test_each_gradient_is_computed_only_if_it_is_wanted() -> None:
    plan, values = random_plan(30, 40, 0.2)
    x, grad = torch.randn(9, 40), torch.randn(9, 30)

    def grads(*needs: bool) -> tuple[torch.Tensor | None, ...]:
        return ENGINES["native"].linear_grads(plan, values, x, grad, needs, transpose=False)

    every = grads(True, True, True)
    assert grads(False, False, False) == (None, None, None)
    for wanted in range(3):
        one = grads(*(i == wanted for i in range(3)))
        for i in range(3):
            assert (one[i] is None) == (i != wanted)
        assert torch.equal(one[wanted], every[wanted])


@given(st.lists(st.integers(-(2**62), 2**62), max_size=8), st.integers(0, 2**33), st.integers(0, 2**33))
def test_a_compiled_plan_is_built_exactly_for_sound_indices(
    indices: list[int], rows: int, columns: int
) -> None:
    """Straight at the compiled core, past the checks in Python."""
    positions = torch.tensor(indices, dtype=torch.int64)
    active = torch.ones(len(indices), dtype=torch.bool)
    sound = indices == sorted(set(indices)) and all(0 <= i < rows * columns for i in indices)
    arguments = (rows, columns, positions.data_ptr(), 8, active.data_ptr(), len(indices), True, 1, False, 2)
    if max(rows, columns) >= 2**31:
        with pytest.raises(ValueError, match=r"rows and columns must each be below 2\^31"):
            _native.Plan(*arguments)
    elif not sound:
        with pytest.raises(ValueError, match="indices must"):
            _native.Plan(*arguments)
    elif rows * columns < 10**6:
        assert _native.Plan(*arguments).num_slots == len(indices)


def test_lengths_that_do_not_fit_are_refused() -> None:
    plan, values = random_plan(3, 4, 0.5)
    compiled = native._plan(plan)
    x, y = torch.zeros(2, 4), torch.zeros(2, 3)
    good = [compiled, False, values.data_ptr(), 6, x.data_ptr(), 8, 2, 0, 0, y.data_ptr(), 6, 1]
    _native.product_float(*good)
    for place, wrong, message in (
        (3, 5, "values must have 6 numbers, got 5"),
        (5, 7, "x must have 8 numbers, got 7"),
        (6, 3, "must have (12|9) numbers"),
        (6, 2**62, "a size overflows 64 bits"),
        (6, -1, "a size overflows 64 bits"),
        (10, 5, "y must have 6 numbers, got 5"),
        (4, 0, "x has no memory"),
        (11, 0, "num_threads must be at least 1, got 0"),
    ):
        bad = list(good)
        bad[place] = wrong
        with pytest.raises(ValueError, match=message):
            _native.product_float(*bad)
    with pytest.raises(ValueError, match="k must be between 0 and 4, got 5"):
        _native.top_k_float(x.data_ptr(), 4, 5, y.data_ptr(), 5, 1)
    with pytest.raises(TypeError):
        _native.product_float("plan", *good[1:])


def test_a_plan_takes_little_memory() -> None:
    plan, _ = random_plan(512, 512, 0.2)
    compiled = native._plan(plan)
    assert compiled.num_bytes < 7 * plan.num_slots
    assert plan.derived.keys() == {"native"}


def test_exactly_one_openmp_runtime_is_in_the_process() -> None:
    """In a process of its own: scikit-learn, where it is loaded too, brings another."""
    if not Path("/proc/self/maps").exists():
        pytest.skip("no /proc: only Linux says what is loaded")
    program = (
        "import re, topkast, torch\n"
        "from topkast.kernels import passes\n"
        "passes.top_k(torch.randn(10**6), 10)\n"
        "maps = open('/proc/self/maps').read()\n"
        "print(len(set(re.findall(r'\\S*lib(?:g|i)?omp[-\\w]*\\.so\\S*', maps))))\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "1"


@pytest.mark.parametrize("isa", ["portable", "avx2", "avx512"])
def test_every_instruction_set_this_cpu_has_gives_the_same_results(isa: str) -> None:
    """In a process of its own, since the choice is made once."""
    program = """
import torch
from topkast.kernels import native
from topkast.kernels.engine import ConvGeometry
from topkast.kernels.engines import ENGINES
from topkast.kernels.plan import Plan
torch.manual_seed(0)
for dtype, tolerance in ((torch.float32, 1e-4), (torch.float64, 1e-11)):
    positions = torch.randperm(300 * 200)[:9000].sort().values
    plan = Plan((300, 200), positions, torch.rand(9000) < 0.5)
    values, x, grad = torch.randn(9000, dtype=dtype), torch.randn(150, 200, dtype=dtype), torch.randn(150, 300, dtype=dtype)
    for a, b in zip(*(
        (*(e.linear_alone(plan, values, x[:n], None, transpose=False) for n in (1, 3, 8, 150)), *e.linear_grads(plan, values, x, grad, (True, True, True), transpose=False))
        for e in (ENGINES["native"], ENGINES["masked"])
    )):
        torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)
print(native.isa())
"""
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "TOPKAST_ISA": isa},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode and "which this CPU or build does not have" in done.stderr:
        pytest.skip(f"this CPU has no {isa}")
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == isa


def test_a_missing_compiled_core_is_said_and_not_swallowed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "_native", None)
    monkeypatch.setattr(native, "_IMPORT_ERROR", "No module named 'topkast.kernels._native'")
    with pytest.raises(
        RuntimeError, match=r"'native' cannot be used: the compiled core is missing .*`pip install \.`"
    ):
        check_engine("native")
    with pytest.warns(
        RuntimeWarning, match="engine 'auto' does without 'native': the compiled core is missing"
    ):
        check_engine("auto")
    assert usable_engines("linear", None, torch.device("cpu")) == ["masked", "csr"]
    assert topkast.core.select.top_k(torch.tensor([1.0, -3.0, 2.0]), 1).tolist() == [1]


def test_native_is_for_the_cpu() -> None:
    assert why_not("native", "linear", None, "cuda") == "native runs on the CPU"
    assert why_not("auto", "linear", None, "cuda") is None
    assert usable_engines("linear", None, torch.device("cuda")) == ["masked", "csr"]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("explores", [True, False])
@pytest.mark.usefixtures("threads")
def test_lookups_equal_masked_for_every_number_of_threads(dtype: torch.dtype, explores: bool) -> None:
    positions = torch.randperm(90 * 40)[:700].sort().values
    plan = Plan((90, 40), positions, torch.rand(700) < 0.5, explores=explores)
    values, ids = torch.randn(700, dtype=dtype), torch.randint(90, (500,))
    grad = torch.randn(500, 40, dtype=dtype)
    exact = ENGINES["masked"]
    results = []
    for count in (1, 2, 3):
        torch.set_num_threads(count)
        engine = ENGINES["native"]
        results.append((engine.lookup(plan, values, ids), engine.lookup_grad(plan, ids, grad)))
    assert torch.equal(results[0][0], exact.lookup(plan, values, ids))
    tolerance = 1e-12 if dtype == torch.float64 else 1e-4
    expected = exact.lookup_grad(plan, ids, grad.double())
    rounded = expected if dtype == torch.float64 else expected.to(dtype).double()
    error = (results[0][1].double() - rounded).abs().max()
    assert error <= (tolerance if dtype != torch.bfloat16 else 0.07)
    for other in results[1:]:
        assert torch.equal(other[0], results[0][0])
        assert torch.equal(other[1], results[0][1])


def test_rows_outside_the_table_are_refused() -> None:
    """Straight at the compiled core, past the checks in Python."""
    plan = Plan((5, 4), torch.tensor([3, 7]), torch.ones(2, dtype=torch.bool))
    table, values, out = native._table(plan), torch.zeros(2), torch.zeros(1, 4)
    for row in (-1, 5, 2**62):
        ids = torch.tensor([row])
        with pytest.raises(ValueError, match=rf"ids must lie in \[0, 5\), got {row}"):
            _native.lookup_float(table, values.data_ptr(), 2, ids.data_ptr(), 1, out.data_ptr(), 4, 1)
        with pytest.raises(ValueError, match=rf"ids must lie in \[0, 5\), got {row}"):
            _native.lookup_grad_float(table, ids.data_ptr(), 1, out.data_ptr(), 4, values.data_ptr(), 2, 1)


@pytest.mark.parametrize(
    ("positions", "message"), [([3, 20], "must lie in"), ([7, 3], "strictly increasing")]
)
def test_tables_refuse_bad_positions(positions: list[int], message: str) -> None:
    indices, active = torch.tensor(positions), torch.ones(2, dtype=torch.bool)
    with pytest.raises(ValueError, match=message):
        _native.Table(5, 4, indices.data_ptr(), active.data_ptr(), 2, True)
