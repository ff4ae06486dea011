"""The bytes of a compiled Plan, foreseen from its sizes."""

from __future__ import annotations

from dataclasses import asdict

import pytest
import torch
from torch import nn

import topkast
from topkast.cost.footprint import PlanSizes, _missing, plan_footprint, table_footprint
from topkast.cost.memory import plan_bytes
from topkast.kernels.native import gathers_input_grad, plan_sizes, why_missing
from topkast.nn.layers import geometry_of

pytestmark = [
    pytest.mark.skipif(why_missing() is not None, reason="the compiled core is missing"),
    pytest.mark.usefixtures("one_thread"),
]

LAYERS = {
    "wide": (lambda: nn.Linear(1030, 200), (2, 1030), 0.003),
    "tall": (lambda: nn.Linear(300, 1100), (2, 300), 0.003),
    "3x3": (lambda: nn.Conv2d(64, 64, 3, padding=1), (1, 64, 4, 4), 0.02),
    "3x3, stride 2": (lambda: nn.Conv2d(64, 96, 3, stride=2, padding=1), (1, 64, 4, 4), 0.02),
    "1x1": (lambda: nn.Conv2d(128, 96, 1), (1, 128, 4, 4), 0.02),
    "groups": (lambda: nn.Conv2d(64, 96, 3, padding=1, groups=4), (1, 64, 4, 4), 0.06),
    "1-D": (lambda: nn.Conv1d(100, 80, 5), (1, 100, 9), 0.02),
}


@pytest.mark.parametrize("pair", [(0.0, 0.0), (0.5, 0.5), (0.8, 0.5), (0.9, 0.8), (0.95, 0.9), (0.98, 0.95)])
@pytest.mark.parametrize("name", LAYERS)
def test_it_is_that_of_a_real_plan(name: str, pair: tuple[float, float]) -> None:
    make, shape, tolerance = LAYERS[name]
    layer = make()
    options = {}
    if not isinstance(layer, nn.Linear):
        geometry = geometry_of(layer)
        gathers = gathers_input_grad(tuple(layer.weight.shape[2:]), geometry)
        options = {"groups": geometry.groups, "gathers": gathers}
    for explore_until in (None, 0):
        model = nn.Sequential(make())
        handle = topkast.sparsify(model, topkast.TopKAST(*pair, explore_until=explore_until), engine="native")
        model(torch.randn(shape))
        (weight,) = handle.weights.values()
        c = weight.counts
        foreseen = plan_footprint(
            tuple(weight.shape), c.forward, c.backward, explores=explore_until is None, **options
        )
        assert foreseen == pytest.approx(plan_bytes(weight.plan), rel=tolerance)


def test_it_is_exact_where_nothing_is_left_to_chance() -> None:
    # One block and one tile each way; 4 of 4 columns in each of 4 rows, so that nothing is filled up.
    sweeps = 2 * (4 * 16 + 2 * 16 + 4 * (4 + 1) + 2 * 8 * 2 + 2 * 8)
    samples = 2 * (16 + 16) + 4 * (4 + 1) + 2 * 8 * 2
    assert plan_footprint((4, 4), 16, 16) == sweeps + samples + 4 * 5


def test_without_the_compiled_core_the_same_sizes_are_known() -> None:
    assert plan_sizes() == asdict(PlanSizes())


def test_slots_take_32_bits_where_rows_are_long() -> None:
    narrow, wide = (plan_footprint((2, 2**18), 2 * k, 2 * k) for k in (2**16, 2**16 + 1))
    assert wide - narrow == pytest.approx(2 * 2 * 2 * 2**16, rel=1e-3)


def test_a_table_has_rows_columns_and_flags() -> None:
    model = nn.Sequential(nn.Embedding(40, 16))
    handle = topkast.sparsify(model, topkast.TopKAST(0.9, 0.8), engine="native")
    model(torch.arange(40))
    (weight,) = handle.weights.values()
    assert plan_bytes(weight.plan) == table_footprint(40, 128) == 8 * 41 + 5 * 128


@pytest.mark.parametrize(
    ("k", "d"), [(0, 0.3), (1, 0.3), (2, 0.5), (7, 0.9), (512, 0.02), (4, 1.0), (5, 1.0)]
)
def test_what_is_missing_to_whole_groups_is_the_mean_over_a_binomial(k: int, d: float) -> None:
    chances = torch.distributions.Binomial(k, torch.tensor(d, dtype=torch.float64)) if 0 < d < 1 else None
    counts = torch.arange(k + 1, dtype=torch.float64)
    chance = chances.log_prob(counts).exp() if chances else (counts == k).double()
    assert _missing(k, d) == pytest.approx(float((chance * (-counts % 4)).sum()), abs=1e-9)
