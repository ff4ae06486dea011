"""Numbers with a unit, and columns that line up."""

from __future__ import annotations

import pytest

from topkast.text import BYTES, COUNTS, FLOPS, aligned, padded, ruled, scaled, shape_text, short


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
