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


@dataclass(frozen=True)
class Entry:
    """A network.

    Attributes:
        sizes: Those that can be chosen, with their defaults.
        unit: What a batch is made of.
        model: Makes it from its sizes.
        example: Makes an input from the sizes and a number of units.
    """

    sizes: Mapping[str, Any]
    unit: str
    model: Callable[[Mapping[str, Any]], nn.Module]
    example: Callable[[Mapping[str, Any], int], Tensor]

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

    def build(self, batch: int, sizes: Mapping[str, Any]) -> tuple[nn.Module, Tensor]:
        """The network and an input on the meta device, where nothing takes memory.

        Args:
            batch: Units of the input.
            sizes: In place of the defaults.
        """
        chosen = {**self.sizes, **sizes}
        self.check(chosen)
        with torch.device("meta"):
            return self.model(chosen), self.example(chosen, batch)


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
        lambda s, batch: torch.empty(batch, 3, s["image_size"], s["image_size"]),
    ),
}
