"""Text for people to read: numbers with a unit, columns that line up, values in messages."""

from __future__ import annotations

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
    return f"{amount:.{digits}g}{gap if unit else ''}{unit}"


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
