"""`Copies`: which copies of a weight live, and whether one was written to since it was made.

A copy whose values are written to, and not loaded, is an average kept by slot. The version counter of its
values does not tell: momentum encoders and target networks write through `.data`. Their content does.
"""

from __future__ import annotations

import weakref
from typing import Any

from topkast.core.slots import checksum


class Copies:
    """The copies of one weight, and what its own values were when it was copied from another."""

    def __init__(self, weight: Any) -> None:
        self._weight = weakref.ref(weight)
        self._twins: weakref.WeakSet[Any] = weakref.WeakSet()
        self._content: int | None = None

    def add(self, twin: Any) -> None:
        """Notes a copy that was just made."""
        self._twins.add(twin)
        twin.copies._content = checksum(twin.values)

    def settle(self) -> None:
        """Marks the present values as the weight's own: what was written so far was not an average."""
        self._content = None

    def was_written(self) -> bool:
        """Whether the weight is a copy whose values are others by now."""
        weight = self._weight()
        return self._content is not None and weight is not None and checksum(weight.values) != self._content

    def mark(self) -> None:
        """Takes the present values, cast or loaded, for those that were copied."""
        weight = self._weight()
        if self._content is not None and weight is not None:
            self._content = checksum(weight.values)

    def averages(self) -> list[Any]:
        """Living copies that were written to."""
        return [twin for twin in self._twins if twin.copies.was_written()]
