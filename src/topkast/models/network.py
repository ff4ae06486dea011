"""A network as data: its name and what it is made with, from which it can be built anywhere."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import nn

from topkast.models.decoder import Decoder
from topkast.models.mlp import MLP
from topkast.models.resnet import resnet50
from topkast.models.resnet_small import resnet18, resnet20
from topkast.models.transformer_xl import TransformerXL

CONSTRUCTORS: Mapping[str, Callable[..., nn.Module]] = {
    "mlp": MLP,
    "decoder": Decoder,
    "transformer-xl": TransformerXL,
    "resnet18": resnet18,
    "resnet20": resnet20,
    "resnet50": resnet50,
}


@dataclass(frozen=True)
class Network:
    """What has to be known to build a network.

    Attributes:
        name: One of `CONSTRUCTORS`.
        arguments: What that is called with: plain data.
    """

    name: str
    arguments: Mapping[str, Any]

    def build(self) -> nn.Module:
        """The network, freshly initialised, on the present default device."""
        return CONSTRUCTORS[self.name](**self.arguments)

    def to_json(self) -> dict[str, Any]:
        """As plain data."""
        return {"name": self.name, "arguments": dict(self.arguments)}

    @classmethod
    def from_json(cls, content: Any) -> Network:
        """From plain data, which may come from anywhere.

        Raises:
            ValueError: It is not the description of a network that we have.
        """
        if not isinstance(content, dict) or set(content) != {"name", "arguments"}:
            raise ValueError("a network is described by its `name` and `arguments`")
        name, arguments = content["name"], content["arguments"]
        if not isinstance(name, str) or name not in CONSTRUCTORS:
            raise ValueError(f"there is no network {name!r}; there are {', '.join(CONSTRUCTORS)}")
        known = inspect.signature(CONSTRUCTORS[name]).parameters
        if not isinstance(arguments, dict) or not set(arguments) <= set(known):
            raise ValueError(f"a {name} is made with {', '.join(known)}, got {arguments!r}")
        return cls(name, {key: _plain(name, key, value) for key, value in arguments.items()})


def _plain(name: str, key: str, value: Any) -> Any:
    """Numbers, words, and lists of them, which JSON has in place of tuples."""
    parts = value if isinstance(value, list) else [value]
    if not all(part is None or isinstance(part, bool | int | float | str) for part in parts):
        raise ValueError(f"`{key}` of a {name} must be a number, a word or a list of them, got {value!r}")
    return tuple(value) if isinstance(value, list) else value
