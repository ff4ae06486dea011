"""Language modelling on windows of bytes, by a decoder that sees one window at a time."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from topkast.data.plain_text import check_length, read_text, stdlib_text
from topkast.models.network import Network
from topkast.train.task import Task


@dataclass
class TextTask(Task):
    """Byte-level language modelling, by default on the standard library's own sources."""

    data: Path | None = None
    limit: int | None = None
    width: int = 256
    depth: int = 2
    heads: int = 4
    window: int = 128
    batch: int = 16

    quality_name = "bits per byte"
    higher_is_better = False
    unit = "bytes"
    steps = 400
    lr = 2e-3
    held_out_windows = 128

    def __post_init__(self) -> None:
        if self.width % self.heads:
            raise ValueError(f"--heads must divide --width ({self.width}), got {self.heads}")
        if self.data is None:
            self.train, self.held_out = stdlib_text() if self.limit is None else stdlib_text(self.limit)
            where = "the standard library's sources"
        else:
            self.train, self.held_out = read_text(self.data, self.limit)
            where = str(self.data)
        check_length([("training", self.train), ("held-out", self.held_out)], self.window, where)
        self.units_per_step = self.batch * self.window
        self.title = (
            f"bytes of {where}: {len(self.train):,} for training, {len(self.held_out):,} others held out"
        )

    def sizes(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in ("width", "depth", "heads", "window", "batch")}

    def network(self) -> Network:
        sizes = {"width": self.width, "depth": self.depth, "num_heads": self.heads, "window": self.window}
        return Network("decoder", {"num_symbols": 256, **sizes})

    def inputs(self) -> dict[str, Any]:
        return {"symbols": "bytes", "window": self.window}

    def example(self) -> Tensor:
        return torch.zeros(self.batch, self.window, dtype=torch.int64)

    def loss(self, model: nn.Module, step: int, generator: torch.Generator) -> Tensor:
        starts = torch.randint(len(self.train) - self.window, (self.batch,), generator=generator)
        return self._loss(model, self.train, starts[self.share.of(self.batch)])

    @torch.no_grad()
    def quality(self, model: nn.Module, *, whole: bool = False) -> float:
        last = len(self.held_out) - self.window - 1
        if whole:  # windows one after another; what is left at the end is less than one
            starts = torch.arange(0, last + 1, self.window)
        else:
            starts = torch.linspace(0, last, self.held_out_windows).long()
        parts = starts.split(self.batch)
        losses = [self._loss(model, self.held_out, part).double() * len(part) for part in parts]
        return float(torch.stack(losses).sum()) / len(starts) / math.log(2)

    def _loss(self, model: nn.Module, text: Tensor, starts: Tensor) -> Tensor:
        windows = text[starts[:, None] + torch.arange(self.window + 1)].long()
        logits = model(windows[:, :-1])
        return F.cross_entropy(logits.flatten(0, 1).float(), windows[:, 1:].flatten())
