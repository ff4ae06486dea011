"""The networks by name: as data from which they can be built anywhere, and with sizes to plan with.

`CATALOGUE` is the one list of them; a new network is an entry there.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from topkast.models.resnet import ResNet9, resnet18, resnet20, resnet50
from topkast.models.simple import MLP, Decoder
from topkast.models.transformer_xl import TransformerXL

Inputs = Tensor | tuple[Tensor, ...]


@dataclass(frozen=True)
class Entry:
    """All that is to be known of a network.

    Attributes:
        constructor: Makes it.
        sizes: Those that can be chosen for a plan, with their defaults.
        unit: What a batch is made of.
        arguments: Of the constructor, from the sizes.
        example: Makes an input from the sizes and a number of units: a tensor, or a tuple of arguments.
    """

    constructor: Callable[..., nn.Module]
    sizes: Mapping[str, Any]
    unit: str
    arguments: Callable[[Mapping[str, Any]], dict[str, Any]]
    example: Callable[[Mapping[str, Any], int], Inputs]

    def check(self, sizes: Mapping[str, Any]) -> None:
        """Raises ValueError for a size that cannot be."""
        for name, size in sizes.items():
            smallest = min(size) if isinstance(size, tuple) else size
            if smallest < 1:
                raise ValueError(f"`{name}` must be at least 1, got {smallest}")
        if len(sizes.get("sizes", (1, 1))) < 2:
            raise ValueError(f"`sizes` must be inputs and outputs at least, got {sizes['sizes']}")
        if sizes.get("width", 0) % sizes.get("heads", 1):
            raise ValueError(f"`heads` must divide `width` ({sizes['width']}), got {sizes['heads']}")

    def build(self, batch: int, sizes: Mapping[str, Any]) -> tuple[nn.Module, Inputs]:
        """The network and an input on the meta device, where nothing takes memory.

        Args:
            batch: Units of the input.
            sizes: In place of the defaults.
        """
        chosen = {**self.sizes, **sizes}
        self.check(chosen)
        with torch.device("meta"):
            return self.constructor(**self.arguments(chosen)), self.example(chosen, batch)


def _transformer_xl(s: Mapping[str, Any]) -> dict[str, Any]:
    """By default the paper's enwik8 network; d_ff is 3 times the width in its smaller one too."""
    sizes = {"depth": s["depth"], "d_model": s["width"], "num_heads": s["heads"], "d_ff": 3 * s["width"]}
    return {"num_symbols": s["vocabulary"], **sizes, "tie_biases": True}


def _decoder(s: Mapping[str, Any]) -> dict[str, Any]:
    sizes = {"width": s["width"], "depth": s["depth"], "num_heads": s["heads"], "window": s["length"]}
    return {"num_symbols": s["vocabulary"], **sizes}


def _with_memory(s: Mapping[str, Any], batch: int) -> Inputs:
    """Symbols, and a memory 3 times as long, as the paper has them in training."""
    symbols = torch.empty(batch, s["length"], dtype=torch.int64)
    return symbols, torch.empty(s["depth"], batch, 3 * s["length"], s["width"])


def _pictures(s: Mapping[str, Any], batch: int) -> Inputs:
    return torch.empty(batch, 3, s["image_size"], s["image_size"])


CATALOGUE: Mapping[str, Entry] = {
    "mlp": Entry(
        MLP,
        {"sizes": (784, 512, 256, 10)},
        "rows",
        lambda s: {"sizes": list(s["sizes"])},
        lambda s, batch: torch.empty(batch, s["sizes"][0]),
    ),
    "decoder": Entry(
        Decoder,
        {"vocabulary": 256, "width": 512, "depth": 6, "heads": 8, "length": 512},
        "sequences",
        _decoder,
        lambda s, batch: torch.empty(batch, s["length"], dtype=torch.int64),
    ),
    "resnet50": Entry(
        resnet50,
        {"width": 64, "classes": 1000, "image_size": 224},
        "images",
        lambda s: {"num_classes": s["classes"], "width": s["width"]},
        _pictures,
    ),
    "resnet18": Entry(
        resnet18,
        {"width": 64, "classes": 1000, "image_size": 224},
        "images",
        lambda s: {"num_classes": s["classes"], "width": s["width"]},
        _pictures,
    ),
    "resnet20": Entry(
        resnet20,
        {"width": 16, "depth": 20, "classes": 10, "image_size": 32},
        "images",
        lambda s: {"num_classes": s["classes"], "depth": s["depth"], "width": s["width"]},
        _pictures,
    ),
    "resnet9": Entry(
        ResNet9,
        {"width": 32, "classes": 10, "image_size": 32},
        "images",
        lambda s: {"num_classes": s["classes"], "width": s["width"]},
        _pictures,
    ),
    "transformer-xl": Entry(
        TransformerXL,
        {"vocabulary": 256, "width": 1024, "depth": 24, "heads": 8, "length": 768},
        "sequences",
        _transformer_xl,
        _with_memory,
    ),
}


# ---- a network as data ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Network:
    """What has to be known to build a network.

    Attributes:
        name: One of `CATALOGUE`.
        arguments: What its constructor is called with: plain data.
    """

    name: str
    arguments: Mapping[str, Any]

    def build(self) -> nn.Module:
        """The network, freshly initialised, on the present default device."""
        return CATALOGUE[self.name].constructor(**self.arguments)

    def to_json(self) -> dict[str, Any]:
        """As plain data."""
        return {"name": self.name, "arguments": dict(self.arguments)}

    @classmethod
    def from_json(cls, content: Any) -> Network:
        """From plain data or from JSON text, such as the metadata of an export; it may come from anywhere.

        Raises:
            ValueError: It is not the description of a network that we have.
        """
        if isinstance(content, str):
            content = _parsed(content)
        if not isinstance(content, dict) or set(content) != {"name", "arguments"}:
            raise ValueError("a network is described by its `name` and `arguments`")
        name, arguments = content["name"], content["arguments"]
        if not isinstance(name, str) or name not in CATALOGUE:
            raise ValueError(f"there is no network {name!r}; there are {', '.join(CATALOGUE)}")
        known = inspect.signature(CATALOGUE[name].constructor).parameters
        if not isinstance(arguments, dict) or not set(arguments) <= set(known):
            raise ValueError(f"a {name} is made with {', '.join(known)}, got {arguments!r}")
        return cls(name, {key: _plain(name, key, value) for key, value in arguments.items()})


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"the description of a network must be JSON: {error}") from None


def _plain(name: str, key: str, value: Any) -> Any:
    """Numbers, words, and lists of them, which JSON has in place of tuples."""
    parts = value if isinstance(value, list) else [value]
    if not all(part is None or isinstance(part, bool | int | float | str) for part in parts):
        raise ValueError(f"`{key}` of a {name} must be a number, a word or a list of them, got {value!r}")
    return tuple(value) if isinstance(value, list) else value
