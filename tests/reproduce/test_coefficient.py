"""The search for a penalty's factor: by bisection, with as few runs as it says, and errors that help."""

from __future__ import annotations

import math

import pytest

from topkast.reproduce.coefficient import find_coefficient


def learned(coefficient: float) -> float:
    """A sparsity that rises with the logarithm of the coefficient, as it does in training."""
    return 1 / (1 + math.exp(-2 * (math.log10(coefficient) + 4)))


@pytest.mark.parametrize("sparsity", [0.5, 0.9, 0.98, 0.99])
def test_the_coefficient_of_a_wanted_sparsity_is_found(sparsity: float) -> None:
    found = find_coefficient(learned, sparsity, low=1e-7, high=1e-1, tolerance=1e-3, most=20)
    assert found.sparsity == learned(found.coefficient)
    assert abs(found.sparsity - sparsity) <= 1e-3
    wanted = 10 ** (math.log(sparsity / (1 - sparsity)) / 2 - 4)
    assert found.coefficient == pytest.approx(wanted, rel=0.15)
    assert len({coefficient for coefficient, _ in found.tried}) == len(found.tried) <= 20


def test_a_search_halves_the_logarithm_and_stops_when_it_is_near() -> None:
    found = find_coefficient(learned, 0.5, low=1e-6, high=1e-2, tolerance=1e-6)
    assert [c for c, _ in found.tried] == pytest.approx([1e-6, 1e-2, 1e-4])
    assert found.coefficient == pytest.approx(1e-4)


def test_a_search_ends_with_the_nearest_when_it_has_tried_enough() -> None:
    found = find_coefficient(learned, 0.7, low=1e-7, high=1e-1, tolerance=1e-9, most=5)
    assert len(found.tried) == 5
    nearest = min(found.tried, key=lambda one: abs(one[1] - 0.7))
    assert (found.coefficient, found.sparsity) == nearest


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"sparsity": 1.5}, r"`sparsity` must be in \[0, 1\), got 1.5"),
        ({"low": 0.0}, r"`low` must be above 0 and below `high`, got 0.0 and 0.1"),
        ({"low": 0.1}, r"`low` must be above 0 and below `high`, got 0.1 and 0.1"),
        ({"tolerance": 0.0}, r"`tolerance` must be above 0, got 0.0"),
        ({"most": 1}, r"`most` must be at least 2, the runs at both ends, got 1"),
        ({"low": 1e-2}, r"`low` gives a sparsity of 0.982, more than the wanted 0.9: try a smaller one"),
        ({"high": 1e-6}, r"`high` gives a sparsity of 0.01799, less than the wanted 0.9: try a larger one"),
    ],
)
def test_bad_settings_of_a_search_are_named(options: dict[str, float], message: str) -> None:
    settings = {"sparsity": 0.9, "low": 1e-7, "high": 1e-1, **options}
    sparsity = settings.pop("sparsity")
    with pytest.raises(ValueError, match=message):
        find_coefficient(learned, sparsity, **settings)  # pyright: ignore[reportArgumentType]


def test_a_run_that_diverged_is_named() -> None:
    with pytest.raises(
        ValueError, match=r"sparsity from 0 to 1, got nan with the coefficient 0.1; if the run"
    ):
        find_coefficient(lambda c: math.nan if c > 1e-2 else learned(c), 0.9, low=1e-7, high=1e-1)
