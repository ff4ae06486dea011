"""Classification: images that fit into memory, and photographs that are read as they are wanted."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from topkast.data.batches import ImageBatches, generator
from topkast.data.cifar import read_cifar10
from topkast.data.datasets import DATA_SETS, find_dataset
from topkast.data.image_stream import MEAN, STD, ImageStream
from topkast.data.imagenet import read_imagenet
from topkast.data.images import ByteImages, digits, read_byte_folder
from topkast.data.labelled import Part
from topkast.models.network import Network
from topkast.train.task import Task, device_of


class _Classification(Task):
    """What both have: classes, whose share of right answers is the quality."""

    quality_name = "accuracy, %"
    higher_is_better = True
    unit = "images"
    label_smoothing: float
    classes: tuple[str, ...]

    def _cross_entropy(self, model: nn.Module, images: Tensor, labels: Tensor) -> Tensor:
        device = device_of(model)
        logits = model(images.to(device)).float()
        return F.cross_entropy(logits, labels.to(device), label_smoothing=self.label_smoothing)


def _accuracy(model: nn.Module, batches: Iterable[Part]) -> float:
    right, count, device = 0, 0, device_of(model)
    for images, labels in batches:
        right += int((model(images.to(device)).argmax(1) == labels.to(device)).sum())
        count += len(labels)
    return 100 * right / count


@dataclass
class ImageTask(_Classification):
    """Images of one size, by default scikit-learn's digits, by an MLP or a residual network.

    With `validation` so many training images are held out in place of the test images, for whoever chooses
    settings. With `is_unread` a published set is not read: enough for a forecast.
    """

    dataset: str | None = None
    data: Path | None = None
    limit: int | None = None
    validation: int | None = None
    shuffled_labels: bool = False
    seed: int = 0
    model: str = "mlp"
    hidden: tuple[int, ...] = (256, 128)
    width: int | None = None
    depth: int | None = None
    side: int = 32
    batch: int = 64
    augment: bool | None = None
    label_smoothing: float = 0.0
    is_unread: bool = False

    steps = 600
    lr = 2e-3

    def __post_init__(self) -> None:
        images, where = self._read()
        self.classes = images.classes
        x, y = (part[: self.limit] for part in images.train)
        self.held_out = images.held_out
        if self.validation is not None:
            (x, y), self.held_out = self._without_test((x, y))
        if self.shuffled_labels:
            y = y[torch.randperm(len(y), generator=generator("labels", self.seed))]
        mean, std = ByteImages((x, y), images.held_out, images.classes).mean_std()
        self.mean, self.std = mean.tolist(), std.tolist()
        augment = self.model != "mlp" if self.augment is None else self.augment
        self.batches = ImageBatches((x, y), self.batch, mean, std, self.seed, augment)
        self.shape = tuple(x.shape[1:])
        self.units_per_step = self.batch
        self.title = f"images of {where}: {len(y):,} for training, {len(self.held_out[1]):,} others held out"

    def _without_test(self, images: Part) -> tuple[Part, Part]:
        """Training images, and the last of them held out."""
        rest = len(images[1]) - (self.validation or 0)
        if rest < self.batch:
            raise ValueError(
                f"data.validation must leave a batch of {self.batch} of the {len(images[1]):,} training "
                f"images, got {self.validation}"
            )
        x, y = images
        return (x[:rest], y[:rest]), (x[rest:], y[rest:])

    def _read(self) -> tuple[ByteImages, str]:
        if self.dataset is not None:
            return self._read_published(self.dataset)
        if self.data is None:
            train, held_out = (((255 * x).round().byte().unsqueeze(1), y) for x, y in digits())
            return ByteImages(train, held_out, tuple(str(n) for n in range(10))), "scikit-learn's digits"
        return read_byte_folder(self.data, self.side), str(self.data)

    def _read_published(self, name: str) -> tuple[ByteImages, str]:
        title, shape = DATA_SETS[name].title, DATA_SETS[name].shape
        if self.is_unread:
            assert shape is not None
            blank = torch.zeros(self.batch, *shape, dtype=torch.uint8), torch.arange(self.batch) % 10
            classes = tuple(map(str, range(10)))
            return ByteImages(blank, blank, classes), f"{title}, which is not here, but blank"
        if name == "cifar-10":
            return read_cifar10(self.data), title
        return read_byte_folder(find_dataset(name, self.data)), title

    def sizes(self) -> dict[str, Any]:
        own = {"hidden": self.hidden} if self.model == "mlp" else {"width": self.width, "depth": self.depth}
        return {**{name: value for name, value in own.items() if value is not None}, "batch": self.batch}

    def network(self) -> Network:
        if self.model == "mlp":
            inputs = torch.Size(self.shape).numel()
            return Network("mlp", {"sizes": (inputs, *self.hidden, len(self.classes))})
        sizes = {name: getattr(self, name) for name in ("width", "depth") if getattr(self, name) is not None}
        if self.model == "resnet9":
            sizes["channels"] = self.shape[0]
        elif self.shape[0] != 3:
            raise ValueError(
                f"a {self.model} takes images of 3 channels, these have {self.shape[0]}; use --model resnet9 "
                "or mlp"
            )
        return Network(self.model, {"num_classes": len(self.classes), **sizes})

    def inputs(self) -> dict[str, Any]:
        return {"shape": list(self.shape), "mean": self.mean, "std": self.std, "classes": list(self.classes)}

    def example(self) -> Tensor:
        return torch.zeros(self.batch, *self.shape)

    def loss(self, model: nn.Module, step: int, generator: torch.Generator) -> Tensor:
        rows = self.share.of(self.batch)
        images, labels = (part[rows] for part in self.batches.at(step))
        return self._cross_entropy(model, images, labels)

    @torch.no_grad()
    def quality(self, model: nn.Module, *, whole: bool = False) -> float:
        return _accuracy(model, ImageBatches(self.held_out, 512, self.mean, self.std).evaluation())


PHOTO_MODELS = ("resnet18", "resnet50")


@dataclass
class PhotoTask(_Classification):
    """ImageNet, or any photographs in ``train`` and ``val`` with a folder for each class, by a ResNet.

    Training images are cut out at random and mirrored; evaluation sees the middle. In training that is done
    for `held_out_images` of them, as published for all. With `is_unread` nothing is read: enough for a
    forecast.
    """

    dataset: str | None = "imagenet"
    data: Path | None = None
    limit: int | None = None
    seed: int = 0
    model: str = "resnet50"
    width: int | None = None
    side: int = 224
    batch: int = 32
    label_smoothing: float = 0.0
    is_unread: bool = False

    steps = 1000
    lr = 0.1
    held_out_images = 2048

    def __post_init__(self) -> None:
        self.units_per_step = self.batch
        self._next: tuple[int, Iterator[Part]] | None = None
        if self.is_unread:
            self.classes = tuple(map(str, range(1000)))
            self.title = "photographs of ImageNet, which is not here"
            return
        train, held_out = read_imagenet(self.data)
        self.classes = train.classes
        # A photograph is brought to 8/7 of the side that is cut out of it, as for 224 of 256.
        shorter = round(self.side * 256 / 224)
        self.stream = ImageStream(train, self.batch, self.seed, self.side, shorter)
        self.held_out = ImageStream(held_out, min(self.batch, 64), self.seed, self.side, shorter)
        self.title = (
            f"photographs of {len(self.classes):,} classes: {len(train.labels):,} for training, "
            f"{len(held_out.labels):,} others held out"
        )

    def sizes(self) -> dict[str, Any]:
        own = {"side": self.side, "batch": self.batch}
        return own if self.width is None else {"width": self.width, **own}

    def network(self) -> Network:
        sizes = {} if self.width is None else {"width": self.width}
        return Network(self.model, {"num_classes": len(self.classes), **sizes})

    def inputs(self) -> dict[str, Any]:
        shape = [3, self.side, self.side]
        return {"shape": shape, "mean": list(MEAN), "std": list(STD), "classes": list(self.classes)}

    def example(self) -> Tensor:
        return torch.zeros(self.batch, 3, self.side, self.side)

    def loss(self, model: nn.Module, step: int, generator: torch.Generator) -> Tensor:
        if self._next is None or self._next[0] != step:  # the first step, or the first after an interruption
            self._next = (step, self.stream.train(step, self.share))
        images, labels = next(self._next[1])
        self._next = (step + 1, self._next[1])
        return self._cross_entropy(model, images, labels)

    def aside(self) -> PhotoTask:
        twin = copy.copy(self)
        twin._next = None  # batches that are taken from it would be missing here
        return twin

    @torch.no_grad()
    def quality(self, model: nn.Module, *, whole: bool = False) -> float:
        batches = self.held_out.evaluation()
        if not whole:
            batches = islice(batches, -(-self.held_out_images // self.held_out.batch))
        return _accuracy(model, batches)
