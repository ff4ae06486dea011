"""The networks by name, with sizes to choose, and an input for each: for planning without building."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from topkast.models.decoder import Decoder
from topkast.models.mlp import MLP
from topkast.models.resnet import ResNet50
from topkast.models.resnet_small import resnet18, resnet20
from topkast.models.transformer_xl import TransformerXL

Example = Tensor | tuple[Tensor, ...]


@dataclass(frozen=True)
class Entry:
    """A network.

    Attributes:
        sizes: Those that can be chosen, with their defaults.
        unit: What a batch is made of.
        model: Makes it from its sizes.
        example: Makes an input from the sizes and a number of units: a tensor, or a tuple of arguments.
    """

    sizes: Mapping[str, Any]
    unit: str
    model: Callable[[Mapping[str, Any]], nn.Module]
    example: Callable[[Mapping[str, Any], int], Example]

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

    def build(self, batch: int, sizes: Mapping[str, Any]) -> tuple[nn.Module, Example]:
        """The network and an input on the meta device, where nothing takes memory.

        Args:
            batch: Units of the input.
            sizes: In place of the defaults.
        """
        chosen = {**self.sizes, **sizes}
        self.check(chosen)
        with torch.device("meta"):
            return self.model(chosen), self.example(chosen, batch)


def _transformer_xl(s: Mapping[str, Any]) -> nn.Module:
    """By default the paper's enwik8 network; d_ff is 3 times the width in its smaller one too."""
    sizes = {"depth": s["depth"], "d_model": s["width"], "num_heads": s["heads"], "d_ff": 3 * s["width"]}
    return TransformerXL(s["vocabulary"], **sizes, tie_biases=True)


def _with_memory(s: Mapping[str, Any], batch: int) -> Example:
    """Symbols, and a memory 3 times as long, as the paper has them in training."""
    symbols = torch.empty(batch, s["length"], dtype=torch.int64)
    return symbols, torch.empty(s["depth"], batch, 3 * s["length"], s["width"])


def _pictures(s: Mapping[str, Any], batch: int) -> Example:
    return torch.empty(batch, 3, s["image_size"], s["image_size"])


CATALOGUE: Mapping[str, Entry] = {
    "mlp": Entry(
        {"sizes": (784, 512, 256, 10)},
        "rows",
        lambda s: MLP(list(s["sizes"])),
        lambda s, batch: torch.empty(batch, s["sizes"][0]),
    ),
    "decoder": Entry(
        {"vocabulary": 256, "width": 512, "depth": 6, "heads": 8, "length": 512},
        "sequences",
        lambda s: Decoder(s["vocabulary"], s["width"], s["depth"], s["heads"], s["length"]),
        lambda s, batch: torch.empty(batch, s["length"], dtype=torch.int64),
    ),
    "resnet50": Entry(
        {"width": 64, "classes": 1000, "image_size": 224},
        "images",
        lambda s: ResNet50(s["classes"], width=s["width"]),
        _pictures,
    ),
    "resnet18": Entry(
        {"width": 64, "classes": 1000, "image_size": 224},
        "images",
        lambda s: resnet18(s["classes"], width=s["width"]),
        _pictures,
    ),
    "resnet20": Entry(
        {"width": 16, "depth": 20, "classes": 10, "image_size": 32},
        "images",
        lambda s: resnet20(s["classes"], depth=s["depth"], width=s["width"]),
        _pictures,
    ),
    "transformer-xl": Entry(
        {"vocabulary": 256, "width": 1024, "depth": 24, "heads": 8, "length": 768},
        "sequences",
        _transformer_xl,
        _with_memory,
    ),
}
