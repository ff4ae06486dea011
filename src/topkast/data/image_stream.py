"""Photographs as batches: cut at random, mirrored, normalised, made ahead of time by threads."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING, Protocol, TypeVar

import numpy as np
import torch
from torch import Tensor

from topkast.data.batches import Order, Share, generator, normalised
from topkast.data.labelled import Part, pillow

if TYPE_CHECKING:
    from PIL.Image import Image


# ---- made ahead ----------------------------------------------------------------------------------------

Key = TypeVar("Key")
Value = TypeVar("Value")


def made_ahead(
    make: Callable[[Key], Value], batches: Iterable[Sequence[Key]], *, workers: int, ahead: int
) -> Iterator[list[Value]]:
    """What `make` gives for the keys of each batch.

    It uses threads and not processes. Pillow gives up the interpreter's lock while it decodes and resizes,
    which is nearly all of the work. Results need no copying between processes. And a process that has used
    OpenMP, as torch does, cannot safely be forked.

    Args:
        make: Called in any thread, in any order; must depend on its key alone.
        batches: Keys; may be endless.
        workers: Threads; with 0 it is all made when it is asked for.
        ahead: How many batches may be in the making beside the one that is handed out.

    Raises:
        Whatever `make` does, when its batch is due.
    """
    if workers < 0 or ahead < 0:
        raise ValueError(f"`workers` and `ahead` must be 0 or more, got {workers} and {ahead}")
    if workers == 0:
        return ([make(key) for key in batch] for batch in batches)
    return _by_threads(make, batches, workers, ahead)


def _by_threads(
    make: Callable[[Key], Value], batches: Iterable[Sequence[Key]], workers: int, ahead: int
) -> Iterator[list[Value]]:
    pool = ThreadPoolExecutor(workers, thread_name_prefix="topkast-data")
    waiting: deque[list[Future[Value]]] = deque()
    try:
        for batch in batches:
            waiting.append([pool.submit(make, key) for key in batch])
            if len(waiting) > ahead:
                yield [future.result() for future in waiting.popleft()]
        while waiting:
            yield [future.result() for future in waiting.popleft()]
    finally:  # also when the caller stops in the middle
        pool.shutdown(cancel_futures=True)


# ---- which rectangle of a photograph -------------------------------------------------------------------

Box = tuple[float, float, float, float]

SCALE = (0.08, 1.0)
RATIO = (3 / 4, 4 / 3)
_TRIES = 10
NUM_DRAWS = 2 * _TRIES + 2


def random_box(width: int, height: int, draws: Sequence[float]) -> Box:
    """A rectangle of random area and shape: (left, upper, right, lower) in pixels.

    Its area is a share a of the image, uniform on [0.08, 1], and its width over its height r, uniform in its
    logarithm on [3/4, 4/3]: w = √(a·W·H·r), h = √(a·W·H / r), rounded, anywhere in the image. After ten that
    do not fit into the image it is the largest one in the middle that has an allowed shape.

    Args:
        width: W.
        height: H.
        draws: `NUM_DRAWS` numbers, uniform on [0, 1).
    """
    for i in range(_TRIES):
        area = width * height * (SCALE[0] + draws[2 * i] * (SCALE[1] - SCALE[0]))
        low, high = (math.log(ratio) for ratio in RATIO)
        ratio = math.exp(low + draws[2 * i + 1] * (high - low))
        w, h = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 1 <= w <= width and 1 <= h <= height:
            left, upper = int(draws[-2] * (width - w + 1)), int(draws[-1] * (height - h + 1))
            return left, upper, left + w, upper + h
    return _central(width, height, min(width, height * RATIO[1]), min(height, width / RATIO[0]))


def central_box(width: int, height: int, share: float) -> Box:
    """The square in the middle that has this share of the shorter side.

    Brought to `share`·s pixels, it is what resizing the shorter side to s and cutting out the middle would
    give, but for where between two pixels it is cut.
    """
    side = min(width, height) * share
    return _central(width, height, side, side)


def _central(width: float, height: float, w: float, h: float) -> Box:
    left, upper = (width - w) / 2, (height - h) / 2
    return left, upper, left + w, upper + h


# ---- a rectangle as a square of bytes ------------------------------------------------------------------


def cut(image: Image, box: Box, size: int, *, is_flipped: bool = False) -> np.ndarray:
    """The rectangle brought to ``(size, size, 3)``, uint8, mirrored if asked; grey and the like become RGB.

    Args:
        image: As opened, not yet decoded.
        box: In pixels of the whole image.
        size: Pixels on a side.
        is_flipped: Whether left and right change places.
    """
    module = pillow()
    width, height = image.size
    left, upper, right, lower = box
    # A JPEG can be decoded at 1/2, 1/4 or 1/8 of its size for less work; the rectangle must keep as many
    # pixels as are asked for. Other formats take no notice.
    image.draft("RGB", (math.ceil(width * size / (right - left)), math.ceil(height * size / (lower - upper))))
    across, down = image.size[0] / width, image.size[1] / height
    rgb = image if image.mode == "RGB" else image.convert("RGB")
    inside = (left * across, upper * down, min(right * across, rgb.width), min(lower * down, rgb.height))
    square = rgb.resize((size, size), module.Resampling.BILINEAR, box=inside)
    if is_flipped:
        square = square.transpose(module.Transpose.FLIP_LEFT_RIGHT)
    return np.asarray(square)


# ---- the stream ----------------------------------------------------------------------------------------

# Of ImageNet's training images, by channel; what published networks are given.
MEAN = (0.485, 0.456, 0.406)
STD = (0.229, 0.224, 0.225)


class Photographs(Protocol):
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

    source: Photographs
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
