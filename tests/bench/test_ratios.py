from __future__ import annotations

import pytest
import torch
from torch import nn

from topkast.bench.contenders import Case, measure
from topkast.bench.ratios import Peaks, break_even, ideal, show_pair


@pytest.mark.parametrize(
    ("pair", "expected"), [((0.0, 0.0), 1), ((0.8, 0.5), 10 / 3), ((0.9, 0.8), 7.5), ((0.95, 0.95), 20)]
)
def test_ideal_counts_two_products_on_a_and_one_on_b(pair: tuple[float, float], expected: float) -> None:
    assert ideal(pair) == pytest.approx(expected)


def test_pairs_are_shown_in_per_cent() -> None:
    assert show_pair((0.98, 0.95)) == "98/95 %"
    assert show_pair((0.995, 0.9)) == "99.5/90 %"


def test_break_even_is_interpolated_between_two_measurements() -> None:
    found = break_even([0.4, 0.5, 0.6], [0.5, 0.9, 1.3])
    assert found.sparsity == pytest.approx(0.525)
    assert str(found) == "52%"


def test_break_even_on_a_measurement_is_that_measurement() -> None:
    assert break_even([0.4, 0.5], [0.8, 1.0]).sparsity == pytest.approx(0.5)


def test_a_lucky_win_below_does_not_count() -> None:
    assert break_even([0.3, 0.4, 0.5, 0.6], [1.1, 0.8, 0.9, 1.1]).sparsity == pytest.approx(0.55)


def test_never_and_always_say_how_far_was_measured() -> None:
    never = break_even([0.3, 0.8], [0.5, 0.9])
    assert never.sparsity is None
    assert not never.always
    assert str(never) == "never: slower than dense up to 80%"
    always = break_even([0.3, 0.8], [1.0, 2.0])
    assert always.sparsity is None
    assert always.always
    assert str(always) == "below 30%: faster at every sparsity measured"


def test_a_loss_at_the_highest_sparsity_is_never() -> None:
    assert str(break_even([0.3, 0.5, 0.8], [0.9, 1.2, 0.9])).startswith("never")


def test_products_stay_below_the_peak_of_multiply_adds() -> None:
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        one = Peaks.measure()
    finally:
        torch.set_num_threads(before)
    assert one is not None
    assert one.registers > 1e9
    assert one.loads > 1e9
    case = Case("64 → 64", lambda: nn.Linear(64, 64), (32, 64))
    result = measure(case, (0.9, 0.8), ("native",), repeats=3)
    assert result.flops == 3 * 2 * 32 * 64 * 64
    assert result.rate("native") == pytest.approx(result.flops / 7.5 / result.timings["native"].median)
    assert result.rate("native") < one.registers * before
