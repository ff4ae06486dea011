"""The fields of a line of the record, read with their place: an error names both the line and the field."""

from __future__ import annotations

import math
from typing import Any


class Fields:
    """A JSON object with its place, so that an error can name both the line and the field.

    Args:
        content: The object.
        place: Such as "metrics.jsonl, line 3 (progress)".
    """

    def __init__(self, content: Any, place: str) -> None:
        if not isinstance(content, dict):
            raise ValueError(f"{place} must be a JSON object, got {_short(content)}")
        self.content: dict[str, Any] = content
        self.place = place

    def number(self, name: str) -> float:
        """A number that must be there; null stands for NaN, which strict JSON cannot say."""
        if name not in self.content:
            raise ValueError(f"{self.place} lacks {name!r}")
        return self.number_or_nan(name)

    def number_or_nan(self, name: str) -> float:
        value = self.content.get(name)
        if value is None:
            return math.nan
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self._wrong(name, "a number", value)
        return float(value)

    def count(self, name: str) -> int:
        found = self.count_or_none(name)
        if found is None:
            raise ValueError(f"{self.place} lacks {name!r}")
        return found

    def count_or_none(self, name: str) -> int | None:
        value = self.content.get(name)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int | float) or value < 0 or value % 1:
            raise self._wrong(name, "a whole number, at least 0", value)
        return int(value)

    def text(self, name: str, default: str | None = None) -> str:
        value = self.content.get(name, default)
        if value is None:
            raise ValueError(f"{self.place} lacks {name!r}")
        return value if isinstance(value, str) else str(value)

    def flag(self, name: str) -> bool:
        value = self.content.get(name)
        if not isinstance(value, bool):
            raise self._wrong(name, "true or false", value)
        return value

    def items(self, name: str) -> dict[str, Fields]:
        """An object of objects, such as the layers; empty if it is not there."""
        inner = self.inner(name)
        return {key: inner.inner(key) for key in inner.content}

    def inner(self, name: str) -> Fields:
        """An object; empty if it is not there."""
        value = self.content.get(name)
        return Fields({} if value is None else value, f"{self.place}, {_short(name)}")

    def numbers(self, name: str) -> dict[str, float]:
        """An object of numbers; empty if it is not there."""
        inner = self.inner(name)
        return {key: inner.number(key) for key in inner.content}

    def rows(self, name: str, width: int) -> list[list[float]]:
        """A list of rows of numbers; empty if it is not there."""
        value = self.content.get(name) or []
        if not isinstance(value, list):
            raise self._wrong(name, "a list of rows", value)
        for row in value:
            if not isinstance(row, list) or len(row) != width:
                raise self._wrong(name, f"rows of {width} numbers", row)
        return [[Fields({name: cell}, self.place).number(name) for cell in row] for row in value]

    def _wrong(self, name: str, rule: str, value: Any) -> ValueError:
        return ValueError(f"{self.place}: {name!r} must be {rule}, got {_short(value)}")


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "…"
