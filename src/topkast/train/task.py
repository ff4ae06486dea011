"""A task: a network, its batches, and how good it is on data it has not seen."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from topkast.data.digits import digits
from topkast.data.images import Images, read_folder
from topkast.data.stdlib_text import stdlib_text
from topkast.data.text import check_length, read_text
from topkast.models.network import Network


class Task(ABC):
    """What is trained, on what.

    Attributes:
        title: One line for people.
        quality_name: What `quality` measures, such as "bits per byte".
        higher_is_better: Whether more of it is better.
        unit: What a batch is counted in.
        units_per_step: How many of these.
        steps: How many steps make a short but real run.
        lr: A learning rate that suits the network dense and sparse.
    """

    title: str
    quality_name: str
    higher_is_better: bool
    unit: str
    units_per_step: int
    steps: int
    lr: float

    @abstractmethod
    def network(self) -> Network:
        """The dense network."""

    @abstractmethod
    def inputs(self) -> dict[str, Any]:
        """What has to be known to use the network without the data it was trained on, as plain data."""

    @abstractmethod
    def example(self) -> Tensor:
        """An input of the network as a step has it, for counting."""

    @abstractmethod
    def loss(self, model: nn.Module, generator: torch.Generator) -> Tensor:
        """The loss on one random batch."""

    @abstractmethod
    def quality(self, model: nn.Module, *, whole: bool = False) -> float:
        """Quality on held-out data; on all of it rather than a sample if `whole`."""

    @abstractmethod
    def sizes(self) -> dict[str, Any]:
        """The options of the network and of its batches, with their values."""


@dataclass
class TextTask(Task):
    """Byte-level language modelling, by default on the standard library's own sources."""

    data: Path | None = None
    limit: int | None = None
    width: int = 128
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
        sizes = {"width": self.width, "depth": self.depth, "heads": self.heads, "length": self.window}
        return Network("decoder", {"vocabulary": 256, **sizes})

    def inputs(self) -> dict[str, Any]:
        return {"symbols": "bytes", "window": self.window}

    def example(self) -> Tensor:
        return torch.zeros(self.batch, self.window, dtype=torch.int64)

    def loss(self, model: nn.Module, generator: torch.Generator) -> Tensor:
        starts = torch.randint(len(self.train) - self.window, (self.batch,), generator=generator)
        return self._loss(model, self.train, starts)

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


@dataclass
class ImageTask(Task):
    """Classification of images by an MLP, by default of scikit-learn's digits."""

    data: Path | None = None
    limit: int | None = None
    hidden: tuple[int, ...] = (256, 128)
    batch: int = 64

    quality_name = "accuracy, %"
    higher_is_better = True
    unit = "images"
    steps = 600
    lr = 2e-3

    def __post_init__(self) -> None:
        if self.data is None:
            images = Images(*digits(), tuple(str(label) for label in range(10)))
            where = "scikit-learn's digits"
        else:
            images = read_folder(self.data)
            where = str(self.data)
        self.classes = images.classes
        x, y = (part[: self.limit] for part in images.train)
        self.train, self.held_out = (x, y), images.held_out
        # Inputs of mean 0 and size 1, by the training images.
        self.mean, self.std = float(x.mean()), max(1e-6, float(x.std()))
        self.units_per_step = self.batch
        self.title = f"images of {where}: {len(y):,} for training, {len(self.held_out[1]):,} others held out"

    def sizes(self) -> dict[str, Any]:
        return {"hidden": self.hidden, "batch": self.batch}

    def network(self) -> Network:
        return Network("mlp", {"sizes": (self.train[0][0].numel(), *self.hidden, len(self.classes))})

    def inputs(self) -> dict[str, Any]:
        shape = list(self.train[0].shape[1:])
        return {"shape": shape, "mean": self.mean, "std": self.std, "classes": list(self.classes)}

    def example(self) -> Tensor:
        return torch.zeros(self.batch, *self.train[0].shape[1:])

    def loss(self, model: nn.Module, generator: torch.Generator) -> Tensor:
        images, labels = self.train
        chosen = torch.randint(len(labels), (self.batch,), generator=generator)
        return F.cross_entropy(model(self._normalised(images[chosen])).float(), labels[chosen])

    def _normalised(self, images: Tensor) -> Tensor:
        return (images - self.mean) / self.std

    @torch.no_grad()
    def quality(self, model: nn.Module, *, whole: bool = False) -> float:
        images, labels = self.held_out
        right = [
            (model(self._normalised(x)).argmax(1) == y).float().sum()
            for x, y in zip(images.split(512), labels.split(512), strict=True)
        ]
        return 100 * float(torch.stack(right).sum()) / len(labels)


TASKS: dict[str, type[TextTask] | type[ImageTask]] = {"text": TextTask, "images": ImageTask}
