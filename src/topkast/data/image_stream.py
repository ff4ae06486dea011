"""Photographs as batches: cut at random, mirrored, normalised, made ahead of time by threads."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING, Protocol

import numpy as np
import torch
from torch import Tensor

from topkast.data.ahead import made_ahead
from topkast.data.batches import normalised
from topkast.data.crops import NUM_DRAWS, central_box, random_box
from topkast.data.cut import cut
from topkast.data.draw import generator
from topkast.data.labelled import Part
from topkast.data.order import Order
from topkast.data.share import Share

if TYPE_CHECKING:
    from PIL.Image import Image

# Of ImageNet's training images, by channel; what published networks are given.
MEAN = (0.485, 0.456, 0.406)
STD = (0.229, 0.224, 0.225)


class Source(Protocol):
    """Where images come from: files, or decoded ones."""

    @property
    def labels(self) -> Tensor:
        """int64, one for each image."""
        ...

    @property
    def classes(self) -> tuple[str, ...]:
        """Names, by label."""
        ...

    def open(self, index: int) -> AbstractContextManager[Image]:
        """The image of that number."""
        ...


@dataclass(frozen=True)
class ImageStream:
    """Batches of float32 images ``(batch, 3, size, size)`` and int64 labels.

    Which images a step has depends on (seed, step), how each is cut and mirrored on (seed, epoch, number of
    the image); neither on how many threads there are, nor on where a run was interrupted.

    Args:
        source: `ImageFiles` or `DecodedImages`.
        batch: Images in a step.
        seed: Of all that is random.
        size: Pixels on a side.
        shorter: Pixels that the shorter side is brought to for evaluation, before the middle is cut out.
        workers: Threads that decode; 0 for none.
        ahead: Batches in the making beside the one that is handed out. A waiting image takes 3·size² bytes.
        mean: By channel, for values in [0, 1].
        std: The same.
    """

    source: Source
    batch: int
    seed: int = 0
    size: int = 224
    shorter: int = 256
    workers: int = 2
    ahead: int = 2
    mean: Sequence[float] = MEAN
    std: Sequence[float] = STD

    def __post_init__(self) -> None:
        if not 1 <= self.size <= self.shorter:
            raise ValueError(f"`size` must be between 1 and `shorter` ({self.shorter}), got {self.size}")

    @property
    def order(self) -> Order:
        """Which images a step has."""
        return Order(len(self.source.labels), self.batch, self.seed)

    def train(self, start: int = 0, share: Share | None = None) -> Iterator[Part]:
        """The batches of steps `start`, `start` + 1, … without end; of each only a share, if there is one."""
        order, rows = self.order, (share or Share()).of(self.batch)
        steps = (order.at(step) for step in count(start))
        return self._batches([(epoch, i) for i in chosen[rows].tolist()] for epoch, chosen in steps)

    def evaluation(self) -> Iterator[Part]:
        """Every image once, its middle; the last batch may be short."""
        chosen = torch.arange(len(self.source.labels)).split(self.batch)
        return self._batches([(None, i) for i in some.tolist()] for some in chosen)

    def _batches(self, keys: Iterable[list[tuple[int | None, int]]]) -> Iterator[Part]:
        return map(self._batch, made_ahead(self._image, keys, workers=self.workers, ahead=self.ahead))

    def _batch(self, images: list[tuple[np.ndarray, int]]) -> Part:
        pixels = torch.from_numpy(np.stack([image for image, _ in images])).permute(0, 3, 1, 2)
        labels = self.source.labels[[index for _, index in images]]
        return normalised(pixels.contiguous(), self.mean, self.std), labels

    def _image(self, key: tuple[int | None, int]) -> tuple[np.ndarray, int]:
        epoch, index = key
        with self.source.open(index) as image:
            if epoch is None:
                return cut(image, central_box(*image.size, self.size / self.shorter), self.size), index
            *draws, flip = torch.rand(
                NUM_DRAWS + 1, generator=generator("photograph", self.seed, epoch, index), dtype=torch.float64
            ).tolist()
            return cut(image, random_box(*image.size, draws), self.size, is_flipped=flip < 0.5), index
