"""What a run can be told: every option once, from which flags, configuration files and checks follow."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from topkast.core.distribution import nearest


@dataclass(frozen=True)
class Rule:
    """What an option may be.

    Attributes:
        kind: int, float, str or bool; `many` of them for a list.
        help: One line.
        choices: If given, one of these.
        words: Text that may stand in place of a number.
        least: The smallest number allowed.
        most: The largest.
        many: A list, with commas on the command line.
        metavar: How help shows the value.
    """

    kind: type
    help: str
    choices: Collection[str] = ()
    words: Collection[str] = ()
    least: float | None = None
    most: float | None = None
    many: bool = False
    metavar: str | None = None

    def parse(self, text: str) -> Any:
        """The value of a flag.

        Raises:
            ValueError: It is of another kind.
        """
        return (
            [self._parse_one(part) for part in text.split(",") if part]
            if self.many
            else self._parse_one(text)
        )

    def _parse_one(self, text: str) -> Any:
        if self.kind is bool:
            if text not in ("true", "false"):
                raise ValueError(f"must be true or false, got {text!r}")
            return text == "true"
        if text in self.words:
            return text
        try:
            return self.kind(text)
        except ValueError:
            raise ValueError(f"must be {self._wanted()}, got {text!r}") from None

    def _wanted(self) -> str:
        return " or ".join([_KINDS[self.kind], *map(repr, self.words)])

    def check(self, value: Any) -> Any:
        """The value, as it is kept.

        Raises:
            ValueError: It breaks a rule; the message says which, and what it got.
        """
        if not self.many:
            return self._check_one(value)
        if not isinstance(value, list | tuple):
            raise ValueError(f"must be a list, got {value!r}")
        return tuple(self._check_one(part) for part in value)

    def _check_one(self, value: Any) -> Any:
        if self.words and value in self.words:
            return value
        if self.kind is float and isinstance(value, int) and not isinstance(value, bool):
            try:
                value = float(value)
            except OverflowError:
                raise ValueError(f"must be finite, got a number of {value.bit_length()} bits") from None
        if type(value) is not self.kind:
            raise ValueError(f"must be {self._wanted()}, got {value!r}")
        if self.choices and value not in self.choices:
            raise ValueError(f"must be one of {nearest(str(value), self.choices)}, got {value!r}")
        if self.kind is float and not math.isfinite(value):
            raise ValueError(f"must be finite, got {value!r}")
        if self.least is not None and value < self.least:
            raise ValueError(f"must be at least {self.least:g}, got {value!r}")
        if self.most is not None and value > self.most:
            raise ValueError(f"must be at most {self.most:g}, got {value!r}")
        return value


_KINDS = {int: "a whole number", float: "a number", str: "text", bool: "true or false"}


def option(kind: type, default: Any, help: str, **rules: Any) -> Any:
    """A field of a section. A default of None means that it follows from other options."""
    return field(default=default, metadata={"rule": Rule(kind, help, **rules)})


def rules(section: type) -> dict[str, Rule]:
    """Option → rule of one section, in order."""
    return {f.name: f.metadata["rule"] for f in dataclasses.fields(section)}


def checked(section: type, values: Mapping[str, Any], path: str) -> dict[str, Any]:
    """The values of one section, each as its rule keeps it.

    Args:
        section: The class of the section.
        values: Option → value.
        path: Of the section, for messages.

    Raises:
        ValueError: A name that is not there, or a value that breaks its rule; with its path.
    """
    known = rules(section)
    good = {}
    for name, value in values.items():
        if name not in known:
            raise ValueError(f"{path}.{name} is not an option; there are {nearest(name, known)}")
        try:
            good[name] = known[name].check(value)
        except ValueError as error:
            raise ValueError(f"{path}.{name} {error}") from None
    return good


def set_values(section: Any) -> Iterator[tuple[str, Any]]:
    """Options of a section that have a value."""
    for f in dataclasses.fields(section):
        value = getattr(section, f.name)
        if value is not None:
            yield f.name, value
