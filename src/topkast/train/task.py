"""A task: a network, its batches, and how good it is on data it has not seen."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from topkast.data.digits import digits
from topkast.data.stdlib_text import stdlib_text
from topkast.models import MLP, Decoder


class Task(ABC):
    """What is trained, on what.

    Attributes:
        title: One line for people.
        quality_name: What `quality` measures, such as "bits per byte".
        higher_is_better: Whether more of it is better.
        steps: How many steps make a short but real run.
        lr: A learning rate that suits the network dense and sparse.
    """

    title: str
    quality_name: str
    higher_is_better: bool
    steps: int
    lr: float

    @abstractmethod
    def model(self) -> nn.Module:
        """A freshly initialised dense network."""

    @abstractmethod
    def loss(self, model: nn.Module, generator: torch.Generator) -> Tensor:
        """The loss on one random batch."""

    @abstractmethod
    def quality(self, model: nn.Module) -> float:
        """Quality on held-out data."""


class TextTask(Task):
    """Byte-level language modelling on the standard library's own sources."""

    quality_name = "bits per byte"
    higher_is_better = False
    steps = 400
    lr = 2e-3
    window, batch, held_out_windows = 128, 16, 128

    def __init__(self) -> None:
        self.train, self.held_out = stdlib_text()
        self.title = (
            f"bytes of the standard library's sources: {len(self.train):,} for training, "
            f"{len(self.held_out):,} from other files held out"
        )

    def model(self) -> nn.Module:
        return Decoder(num_symbols=256, width=128, depth=2, num_heads=4, window=self.window)

    def loss(self, model: nn.Module, generator: torch.Generator) -> Tensor:
        starts = torch.randint(len(self.train) - self.window, (self.batch,), generator=generator)
        return self._loss(model, self.train, starts)

    @torch.no_grad()
    def quality(self, model: nn.Module) -> float:
        starts = torch.linspace(0, len(self.held_out) - self.window - 1, self.held_out_windows).long()
        losses = [self._loss(model, self.held_out, part) for part in starts.split(self.batch)]
        return float(torch.stack(losses).mean()) / math.log(2)

    def _loss(self, model: nn.Module, text: Tensor, starts: Tensor) -> Tensor:
        windows = text[starts[:, None] + torch.arange(self.window + 1)].long()
        logits = model(windows[:, :-1])
        return F.cross_entropy(logits.flatten(0, 1), windows[:, 1:].flatten())


class ImageTask(Task):
    """Classification of scikit-learn's digits."""

    quality_name = "accuracy, %"
    higher_is_better = True
    steps = 600
    lr = 2e-3
    batch = 64

    def __init__(self) -> None:
        self.train, self.held_out = digits()
        self.title = (
            f"scikit-learn's digits: {len(self.train[1]):,} images for training, "
            f"{len(self.held_out[1]):,} held out"
        )

    def model(self) -> nn.Module:
        return MLP([64, 256, 128, 10])

    def loss(self, model: nn.Module, generator: torch.Generator) -> Tensor:
        images, labels = self.train
        chosen = torch.randint(len(labels), (self.batch,), generator=generator)
        return F.cross_entropy(model(images[chosen]), labels[chosen])

    @torch.no_grad()
    def quality(self, model: nn.Module) -> float:
        images, labels = self.held_out
        return 100 * float((model(images).argmax(1) == labels).float().mean())


TASKS: dict[str, type[Task]] = {"text": TextTask, "images": ImageTask}
