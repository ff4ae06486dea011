"""Products with few rows of input, as in inference: rows of the weight read one after the other."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.autograd import forward_ad

import topkast
from topkast.kernels import native
from topkast.kernels.engines import ENGINES
from topkast.kernels.ops import compute
from topkast.kernels.plan import Plan
from topkast.kernels.product import Linear

_native = pytest.importorskip("topkast.kernels._native", reason="the compiled core is not built")
NATIVE, MASKED = ENGINES["native"], ENGINES["masked"]


def weight(rows: int, columns: int, density: float) -> tuple[Plan, torch.Tensor]:
    g = torch.Generator().manual_seed(rows + columns)
    positions = torch.randperm(rows * columns, generator=g)[: round(density * rows * columns)].sort().values
    plan = Plan((rows, columns), positions, torch.rand(len(positions), generator=g) < 0.5)
    return plan, torch.randn(len(positions), generator=g, dtype=torch.float64)


def largest_error(rows: int, columns: int, density: float, tokens: int, dtype: torch.dtype) -> float:
    """Against the dense product in float64, relative to the largest output."""
    plan, values = weight(rows, columns, density)
    x, bias = torch.randn(tokens, columns).double(), torch.randn(rows).double()
    expected = MASKED.linear(plan, values, x, bias, transpose=False)
    found = NATIVE.linear_alone(plan, values.to(dtype), x.to(dtype), bias.to(dtype), transpose=False)
    assert found.dtype == dtype
    assert found.shape == (tokens, rows)
    return float((found.double() - expected).abs().max() / expected.abs().max()) if tokens * rows else 0.0


@pytest.mark.parametrize(
    ("dtype", "allowed"), [(torch.float64, 1e-14), (torch.float32, 1e-6), (torch.bfloat16, 1e-2)]
)
@pytest.mark.parametrize("tokens", [0, 1, 2, 3, 4, 5, 7, 8])
def test_few_rows_equal_the_dense_product(tokens: int, dtype: torch.dtype, allowed: float) -> None:
    for rows, columns, density in ((1, 1, 1.0), (5, 3, 0.0), (37, 19, 0.2), (300, 517, 0.1), (64, 8, 1.0)):
        assert largest_error(rows, columns, density, tokens, dtype) <= allowed


def test_a_row_may_have_as_many_columns_as_16_bits_tell_apart_and_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for columns in (2**16, 2**16 + 1):
        assert largest_error(2, columns, 0.9, 1, torch.float32) < 1e-5
    plan, values = weight(2, 2**16 + 1, 0.001)
    NATIVE.linear_alone(plan, values, torch.zeros(1, 2**16 + 1).double(), None, transpose=False)
    assert "native rows" not in plan.derived


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize("tokens", [1, 6])
def test_bits_do_not_depend_on_the_number_of_threads(tokens: int) -> None:
    plan, values = weight(400, 900, 0.3)
    x = torch.randn(tokens, 900).double()
    results = []
    for number in (1, 2, 3):
        torch.set_num_threads(number)
        results.append(NATIVE.linear_alone(plan, values, x, None, transpose=False))
    assert all(torch.equal(result, results[0]) for result in results)


def test_it_is_for_passes_that_nobody_differentiates() -> None:
    model = nn.Sequential(nn.Linear(12, 9))
    sparse = topkast.sparsify(model, topkast.TopKAST(0.5, 0.2), engine="native", seed=0)
    plan = sparse.weights["0"].plan
    x = torch.randn(2, 12)
    model(x).sum().backward()
    assert "native rows" not in plan.derived, "in training they would only take memory"
    with torch.no_grad():
        y = model(x)
    assert "native rows" in plan.derived
    assert torch.allclose(y, model(x), atol=1e-6)
    with torch.inference_mode():
        assert torch.equal(model(x), y)
    with torch.no_grad():
        sparse.weights["0"].values.mul_(2)  # values are read where they are: nothing of them is kept
        assert torch.allclose(model(x) - model[0].bias, 2 * (y - model[0].bias), atol=1e-5)


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")
def test_tangents_are_not_lost_in_silence() -> None:
    plan, values = weight(4, 6, 0.5)
    with torch.no_grad(), forward_ad.dual_level():
        x = forward_ad.make_dual(torch.randn(2, 6).double(), torch.ones(2, 6).double())
        with pytest.raises(RuntimeError, match="forward"):
            compute(Linear(), NATIVE, plan, values, x)


def test_bad_positions_and_lengths_are_refused() -> None:
    good, flags = torch.tensor([0, 3, 5]), torch.ones(3, dtype=torch.bool)

    def rows(positions: torch.Tensor, columns: int = 3) -> object:
        return _native.Rows(2, columns, positions.data_ptr(), positions.element_size(), flags.data_ptr(), 3)

    for wrong in ([0, 3, 6], [-1, 3, 5], [0, 3, 3], [3, 0, 5]):
        with pytest.raises(ValueError, match="indices must"):
            rows(torch.tensor(wrong))
    with pytest.raises(ValueError, match="at most 65536 columns"):
        rows(good, 2**16 + 1)
    with pytest.raises(ValueError, match="int32 or int64"):
        _native.Rows(2, 3, good.data_ptr(), 2, flags.data_ptr(), 3)
    with pytest.raises(ValueError, match="no memory"):
        _native.Rows(2, 3, 0, 8, flags.data_ptr(), 3)
    with pytest.raises(ValueError, match="negative"):
        _native.Rows(2, 3, good.data_ptr(), 8, flags.data_ptr(), -1)
    sound, numbers = rows(good), torch.zeros(12)
    address = numbers.data_ptr()
    for values, x, tokens, bias, y in (
        (2, 3, 1, 0, 2), (3, 4, 1, 0, 2), (3, 3, 2, 0, 4), (3, 3, 1, 3, 2), (3, 3, 1, 0, 3), (3, 3, -1, 0, 2),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=r"must have|overflows"):
            _native.few_float(
                sound, address, values, address, x, tokens, address if bias else 0, bias, address, y, 1
            )


def test_the_limit_of_few_is_where_the_usual_product_takes_over() -> None:
    plan, values = weight(20, 30, 0.3)
    NATIVE.linear_alone(plan, values, torch.zeros(native.FEW + 1, 30).double(), None, transpose=False)
    NATIVE.linear_alone(plan, values, torch.zeros(1, 20).double(), None, transpose=True)
    assert "native rows" not in plan.derived
    NATIVE.linear_alone(plan, values, torch.zeros(native.FEW, 30).double(), None, transpose=False)
    assert "native rows" in plan.derived
