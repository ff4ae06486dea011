"""The numbers that the paper prints (`published.toml`), each with its place."""

from __future__ import annotations

import functools
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True)
class Published:
    """What the paper prints for one table or figure.

    Attributes:
        place: Where in the paper; empty if it prints no number.
        quantity: What the numbers are.
        values: By row.
    """

    place: str = ""
    quantity: str = ""
    values: Mapping[str, float] = field(default_factory=dict)


@functools.cache
def _all() -> dict[str, Published]:
    content = tomllib.loads(Path(__file__).with_name("published.toml").read_text())
    return {name: Published(**entry) for name, entry in content.items()}


def published(name: str) -> Published:
    """What the paper prints for an experiment; nothing where it prints no numbers."""
    return _all().get(name, Published())


def names() -> list[str]:
    """Experiments of which numbers are printed."""
    return list(_all())
