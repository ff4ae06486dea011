"""Plain tables, a line at a time: a suite may take minutes, and shows what it has."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from topkast.text import padded

Say = Callable[[str], None]
"""Where lines go: `print`, mostly."""


def times(ratio: float) -> str:
    """A ratio as tables show it."""
    return f"{ratio:.2f}×"


@dataclass(frozen=True)
class Table:
    """Column names, and lines that fit below them: words to the left, numbers to the right."""

    label: str
    columns: Sequence[str]
    label_width: int = 12

    def header(self) -> str:
        return self.line(self.label, self.columns)

    def line(self, label: str, cells: Sequence[str]) -> str:
        widths = [max(8, len(name)) for name in self.columns]
        return padded((label, *cells), (self.label_width, *widths))
