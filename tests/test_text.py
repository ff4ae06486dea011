"""Numbers with a unit, and columns that line up."""

from __future__ import annotations

import math

import pytest

from topkast.text import (
    BYTES,
    COUNTS,
    FLOPS,
    aligned,
    duration,
    flops,
    measured,
    padded,
    percent,
    quality,
    ruled,
    scaled,
    shape_text,
    short,
)


@pytest.mark.parametrize(
    ("amount", "text"),
    [(0, "0 B"), (999, "999 B"), (1000, "1 kB"), (1234567, "1.235 MB"), (-2000, "-2 kB"), (5e18, "5000 PB")],
)
def test_a_number_has_the_first_unit_in_which_it_is_small(amount: float, text: str) -> None:
    assert scaled(amount, BYTES) == text


def test_no_unit_has_no_gap() -> None:
    assert scaled(12, COUNTS) == "12"
    assert scaled(12_000, COUNTS, gap="") == "12k"
    assert scaled(12_345, FLOPS, digits=3, gap="_") == "12.3_kFLOP"


def test_the_limit_says_what_has_the_next_unit() -> None:
    assert scaled(999_960, BYTES) == "1000 kB"
    assert scaled(999_960, BYTES, limit=999.95) == "1 MB"


def test_a_shape_is_its_sizes() -> None:
    assert shape_text((64, 3, 3)) == "64×3×3"
    assert shape_text(()) == ""


def test_words_are_to_the_left_and_numbers_to_the_right() -> None:
    assert padded(("a", "1"), (3, 4)) == "a       1"
    assert padded(("a", "1"), (3, 4), left=(0, 1), gap="|") == "a  |1   "
    assert aligned([("layer", "n"), ("a", "100")]) == ["layer    n", "a      100"]


def test_a_table_has_rules_around_its_middle() -> None:
    assert ruled(["head", "one", "two", "all"]) == ["head", "────", "one", "two", "────", "all"]


def test_a_row_that_has_a_cell_too_few_is_refused() -> None:
    with pytest.raises(ValueError, match="zip"):
        padded(("a",), (1, 2))


def test_a_value_in_a_message_is_short() -> None:
    assert [short(value) for value in (None, True, 1.5, "a", (1, 2))] == [
        "None",
        "True",
        "1.5",
        "'a'",
        "(1, 2)",
    ]
    assert [short(value) for value in ("x" * 100, [1], {"a": 1})] == ["a str", "a list", "a dict"]
    assert short(10**5000) == "a number of 16,610 bits"


ACCURACY, BITS, PERPLEXITY = "accuracy, %", "bits per byte", "perplexity"


@pytest.mark.parametrize(
    ("value", "name", "text"),
    [
        (15, ACCURACY, "15.0"),
        (100, ACCURACY, "100.0"),
        (97.849, ACCURACY, "97.8"),
        (2.7171, BITS, "2.717"),
        (2.5, BITS, "2.500"),
        (12.3456, BITS, "12.346"),
        (158.38, PERPLEXITY, "158"),
        (1158.38, PERPLEXITY, "1,158"),
        (18.27, PERPLEXITY, "18.3"),
        (4.567, PERPLEXITY, "4.57"),
        (0.04567, "error", "0.046"),
        (123456.7, PERPLEXITY, "123,457"),
        (math.nan, ACCURACY, "not a number"),
        (-math.inf, BITS, "infinite"),
    ],
)
def test_a_quality_has_the_digits_that_suit_it(value: float, name: str, text: str) -> None:
    assert measured(value, name) == text


@pytest.mark.parametrize(
    ("value", "deviation", "name", "text"),
    [
        (86.914, 0.035, ACCURACY, "86.91 ± 0.04"),
        (86.914, 0.12, ACCURACY, "86.9 ± 0.1"),
        (86.914, 2.1, ACCURACY, "86.9 ± 2.1"),
        (3.4214, 0.0087, BITS, "3.421 ± 0.009"),
        (1158.38, 56.2, PERPLEXITY, "1,158 ± 56"),
        (3.0, 0.0, BITS, "3.000 ± 0.000"),
        (3.0, 1e-12, BITS, "3.000 ± 0.000"),
        (3.0, math.nan, BITS, "3.000"),
    ],
)
def test_a_deviation_shows_its_first_digit(value: float, deviation: float, name: str, text: str) -> None:
    assert measured(value, name, deviation) == text


def test_per_cent_stands_with_its_number() -> None:
    assert quality(15, ACCURACY) == "15.0\N{NO-BREAK SPACE}%"
    assert quality(2.7171, BITS) == "2.717"
    assert quality(math.nan, ACCURACY) == "not a number"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 s"),
        (1e-9, "below 1 µs"),
        (6.3e-07 * 3600, "2.27 ms"),
        (2.5e-6, "2.5 µs"),
        (0.064, "64 ms"),
        (0.9994, "999 ms"),
        (0.9996, "1 s"),
        (114, "114 s"),
        (119.99, "120 s"),
        (121, "2.02 min"),
        (2 * 3600, "2 h"),
        (47 * 3600, "47 h"),
        (4.32e6, "50 days"),
        (365 * 86400 * 1234.0, "1,234 years"),
        (1e30, None),
        (math.nan, "–"),
    ],
)
def test_a_duration_is_read_without_powers_of_ten(seconds: float, text: str | None) -> None:
    shown = duration(seconds).replace("\N{NO-BREAK SPACE}", " ")
    assert "e+" not in shown
    assert "e-" not in shown
    assert text is None or shown == text


def test_large_and_small_shares_and_sums_have_no_power_of_ten() -> None:
    assert percent(1e-9) == "below 0.001\N{NO-BREAK SPACE}%"
    assert percent(0) == "0\N{NO-BREAK SPACE}%"
    assert percent(0.0123) == "1.23\N{NO-BREAK SPACE}%"
    assert flops(2.5e21) == "2.5\N{NO-BREAK SPACE}ZFLOP"
    assert flops(2.5e25) == "25,000\N{NO-BREAK SPACE}ZFLOP"
