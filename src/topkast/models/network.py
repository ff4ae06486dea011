"""A network as data: its name in the catalogue and its sizes, from which it can be built anywhere."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import nn

from topkast.models.catalogue import CATALOGUE


@dataclass(frozen=True)
class Network:
    """What has to be known to build a network.

    Attributes:
        name: In the catalogue.
        sizes: In place of the catalogue's; tuples where it has tuples.
    """

    name: str
    sizes: Mapping[str, Any]

    def build(self) -> nn.Module:
        """The network, freshly initialised, on the present default device."""
        entry = CATALOGUE[self.name]
        sizes = {**entry.sizes, **self.sizes}
        entry.check(sizes)
        return entry.model(sizes)

    def to_json(self) -> dict[str, Any]:
        """As plain data."""
        return {"name": self.name, "sizes": dict(self.sizes)}

    @classmethod
    def from_json(cls, content: Any) -> Network:
        """From plain data, which may come from anywhere.

        Raises:
            ValueError: It is not the description of a network that we have.
        """
        if not isinstance(content, dict) or set(content) != {"name", "sizes"}:
            raise ValueError("a network is described by its `name` and `sizes`")
        name, sizes = content["name"], content["sizes"]
        if not isinstance(name, str) or name not in CATALOGUE:
            raise ValueError(f"there is no network {name!r}; there are {', '.join(CATALOGUE)}")
        known = CATALOGUE[name].sizes
        if not isinstance(sizes, dict) or not set(sizes) <= set(known):
            raise ValueError(f"the sizes of a {name} are {', '.join(known)}, got {sizes!r}")
        return cls(name, {key: _checked(name, key, value, known[key]) for key, value in sizes.items()})


def _checked(name: str, key: str, value: Any, like: Any) -> Any:
    """A size of the same kind as the default."""
    if isinstance(like, tuple):
        good = isinstance(value, list | tuple) and all(type(part) is type(like[0]) for part in value)
        value = tuple(value) if good else value
    elif isinstance(like, float):
        good = type(value) in (int, float)
    else:
        good = type(value) is type(like)
    if not good:
        raise ValueError(f"`{key}` of a {name} must be like {like!r}, got {value!r}")
    return value
