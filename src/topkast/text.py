"""Text for people to read: numbers with a unit, shares, lists, columns that line up, values in messages."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Collection, Sequence
from typing import Any

BYTES = ("B", "kB", "MB", "GB", "TB", "PB")
FLOPS = ("FLOP", "kFLOP", "MFLOP", "GFLOP", "TFLOP", "PFLOP", "EFLOP", "ZFLOP")
COUNTS = ("", "k", "M", "G", "T", "P", "E")


def scaled(
    amount: float, units: Sequence[str], *, digits: int = 4, limit: float = 1000, gap: str = " "
) -> str:
    """A number in the first unit in which it is small enough, or in the last: 1234 bytes are "1.234 kB".

    Args:
        amount: In the first unit.
        units: Each 1000 times the one before.
        digits: How many are shown.
        limit: A number of this size has the next unit. Below 1000, it keeps 999.99 from becoming "1000".
        gap: What is between number and unit.
    """
    power = 0
    while power < len(units) - 1 and not abs(amount) < limit:
        amount /= 1000
        power += 1
    unit = units[power]
    text = f"{amount:.{digits}g}" if abs(amount) < 10**digits else f"{amount:,.0f}"
    return f"{text}{gap if unit else ''}{unit}"


def shape_text(shape: Sequence[int]) -> str:
    """Such as 64×3×3."""
    return "×".join(map(str, shape))


def padded(
    cells: Sequence[str], widths: Sequence[int], *, left: Collection[int] = (0,), gap: str = "  "
) -> str:
    """One line of a table: the columns in `left` begin at the same place, the others end there."""
    return gap.join(
        cell.ljust(width) if i in left else cell.rjust(width)
        for i, (cell, width) in enumerate(zip(cells, widths, strict=True))
    )


def aligned(rows: Sequence[Sequence[str]], *, left: Collection[int] = (0,)) -> list[str]:
    """The lines of a table, each column as wide as its widest cell."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [padded(row, widths, left=left) for row in rows]


def narrow(rows: Sequence[Sequence[str]], width: int = 80) -> list[str]:
    """The lines of a table that is at most so wide: with narrow gaps, and long names in lines of their own.

    Args:
        rows: Cells; the first of each row is a name.
        width: Of the lines, if other cells leave room for ten letters of the names.
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    gap = "  " if sum(widths) + 2 * (len(widths) - 1) <= width else " "
    widths[0] = min(widths[0], max(10, width - sum(widths[1:]) - len(gap) * (len(widths) - 1)))
    lines = []
    for name, *cells in rows:
        *first, last = textwrap.wrap(name, max(1, widths[0]), subsequent_indent="  ") or [""]
        lines += [*first, padded([last, *cells], widths, gap=gap).rstrip()]
    return lines


def ruled(lines: Sequence[str]) -> list[str]:
    """A table with a rule below its first line and above its last; rules are as long as the first."""
    rule = "─" * len(lines[0])
    return [lines[0], rule, *lines[1:-1], rule, lines[-1]]


def short(value: Any) -> str:
    """A value for a message: simple ones as they are, if they are short."""
    if type(value) is int and value.bit_length() > 200:
        return f"a number of {value.bit_length():,} bits"
    text = repr(value) if value is None or type(value) in (bool, int, float, str, tuple) else ""
    return text if text and len(text) <= 60 else f"a {type(value).__name__}"


MISSING = "–"
_GAP = "\N{NO-BREAK SPACE}"  # a number stays on one line with its unit


def number(value: float) -> str:
    """Such as 3.402; words for what is no number."""
    if math.isnan(value):
        return "not a number"
    if math.isinf(value):
        return "infinite"
    return f"{value:.4g}" if abs(value) < 1e5 else f"{value:,.0f}"


def bare(quality_name: str) -> str:
    """What is measured, without its unit: "accuracy" of "accuracy, %"."""
    return quality_name.removesuffix(", %")


def measured(value: float, quality_name: str, deviation: float = math.nan) -> str:
    """A quality with the digits that suit it: accuracy 15.0, bits 2.717, perplexity 158.

    With a deviation there are as many more as show its first digit: "86.91 ± 0.04".
    """
    if not math.isfinite(value):
        return number(value)
    places = _places(abs(value), quality_name)
    if not math.isfinite(deviation):
        return f"{value:,.{places}f}"
    if deviation >= _ROUNDING:
        places = max(places, -math.floor(math.log10(deviation)))
    return f"{value:,.{places}f} ± {deviation:,.{places}f}"


_ROUNDING = 1e-6  # a deviation below this is none


def _places(value: float, quality_name: str) -> int:
    """Behind the point: a tenth of a per cent, a thousandth of a bit, three digits of a perplexity."""
    if quality_name.endswith(", %"):
        return 1
    if quality_name.startswith("bits"):
        return 3
    return next((places for least, places in ((100, 0), (10, 1), (1, 2)) if value >= least), 3)


def quality(value: float, quality_name: str) -> str:
    """With its unit, if that is per cent: "97.8 %"."""
    unit = f"{_GAP}%" if quality_name.endswith(", %") and math.isfinite(value) else ""
    return f"{measured(value, quality_name)}{unit}"


def stated(value: float, quality_name: str) -> str:
    """In a sentence: "accuracy: 97.8 %", "bits per byte: 1.234"."""
    return f"{bare(quality_name)}: {quality(value, quality_name)}"


def count(value: float | None) -> str:
    return MISSING if value is None or not math.isfinite(value) else f"{value:,.0f}"


def percent(share: float) -> str:
    """Such as 9.3 %; a dash where it is not known."""
    if not math.isfinite(share):
        return MISSING
    if 0 < abs(share) < 1e-5:
        return f"below 0.001{_GAP}%"
    return f"{100 * share:.3g}{_GAP}%" if abs(share) < 10 else f"{100 * share:,.0f}{_GAP}%"


def of_whole(part: float, whole: float) -> float:
    """The share, NaN if there is no whole."""
    return part / whole if whole and math.isfinite(whole) else math.nan


def times(ratio: float) -> str:
    return f"{ratio:.2f}×" if math.isfinite(ratio) else MISSING


def size(amount: float | None) -> str:
    """Bytes, such as 1.23 MB."""
    return MISSING if amount is None else _scaled(amount, BYTES[:5])


def flops(amount: float) -> str:
    """Such as 1.2 GFLOP."""
    return _scaled(amount, FLOPS)


def duration(seconds: float) -> str:
    """Such as 64 ms, 3.2 s, 5.1 min, 3 days: never a power of ten."""
    if not math.isfinite(seconds):
        return MISSING
    if seconds == 0:
        return f"0{_GAP}s"
    for amount, unit in _LONG:
        if seconds >= 2 * amount:
            return f"{_three(seconds / amount)}{_GAP}{unit}"
    for amount, unit in ((1, "s"), (1e-3, "ms"), (1e-6, "µs")):
        if seconds >= 0.9995 * amount:  # what would be shown as 1000 of the next has this unit
            return f"{_three(seconds / amount)}{_GAP}{unit}"
    return f"below 1{_GAP}µs"


_LONG = ((365 * 86400, "years"), (86400, "days"), (3600, "h"), (60, "min"))


def _three(amount: float) -> str:
    """Three digits, or all before the point."""
    return f"{amount:.3g}" if amount < 999.5 else f"{amount:,.0f}"


def listed(words: list[str]) -> str:
    """Such as "a, b and c"."""
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"


def _scaled(amount: float, units: tuple[str, ...]) -> str:
    return scaled(amount, units, digits=3, limit=999.5, gap=_GAP) if math.isfinite(amount) else MISSING
