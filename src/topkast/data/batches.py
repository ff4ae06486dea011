"""Which examples a step sees, as a function of its number; small images shifted, mirrored and in batches."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch
import torch.nn.functional as F
from torch import Tensor

from topkast.data.labelled import Part

# ---- random numbers by name ----------------------------------------------------------------------------


def generator(*key: int | str) -> torch.Generator:
    """A generator that is a function of its key alone, such as ("crop", seed, epoch, step).

    Keys that differ in one number give unrelated generators, because a hash of the key is the seed;
    seeds like seed + epoch would make epoch 1 of one run equal epoch 0 of the next.
    """
    digest = hashlib.blake2b(repr(key).encode(), digest_size=8).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest, "little"))


# ---- the order of examples -----------------------------------------------------------------------------


@dataclass(frozen=True)
class Order:
    """Which examples make up the batch of a step.

    Epoch e goes through a permutation of its own, π(seed, e): its batch t is π[t·batch : (t + 1)·batch]. The
    last count mod batch of an epoch, others each time, are left out.

    Args:
        count: How many examples.
        batch: How many in a step.
        seed: Of all permutations.
    """

    count: int
    batch: int
    seed: int = 0

    def __post_init__(self) -> None:
        if not 1 <= self.batch <= self.count:
            raise ValueError(
                f"`batch` must be between 1 and the number of examples ({self.count}), got {self.batch}"
            )

    @property
    def steps_per_epoch(self) -> int:
        """Steps in which an epoch is gone through."""
        return self.count // self.batch

    def at(self, step: int) -> tuple[int, Tensor]:
        """The epoch of a step, counted through all epochs from 0, and the numbers of its examples."""
        if step < 0:
            raise ValueError(f"`step` must be 0 or more, got {step}")
        epoch, t = divmod(step, self.steps_per_epoch)
        return epoch, _permutation(self.count, self.seed, epoch)[t * self.batch : (t + 1) * self.batch]


@lru_cache(maxsize=2)  # steps of an epoch ask for it one after the other; ImageNet's takes 10 MB and 20 ms
def _permutation(count: int, seed: int, epoch: int) -> Tensor:
    return torch.randperm(count, generator=generator("order", seed, epoch))


# ---- the part of one rank ------------------------------------------------------------------------------


@dataclass(frozen=True)
class Share:
    """One of `count` equal parts: rank r has rows r·b/count to (r + 1)·b/count of a batch of b.

    Equal parts make the mean over ranks the mean over the batch.
    """

    rank: int = 0
    count: int = 1

    def of(self, batch: int) -> slice:
        """The rows of this share.

        Raises:
            ValueError: The batch cannot be divided.
        """
        if batch % self.count:
            raise ValueError(
                f"--batch is that of all ranks together and must be divisible by their number "
                f"({self.count}), got {batch}"
            )
        rows = batch // self.count
        return slice(self.rank * rows, (self.rank + 1) * rows)


# ---- batches of images that are bytes in memory --------------------------------------------------------


def crop_and_flip(images: Tensor, generator: torch.Generator, padding: int = 4) -> Tensor:
    """Each image cut at random from itself with a black border, and every other one mirrored.

    With u, v uniform on {0, …, 2·padding}, f on {0, 1}, drawn for each image, and zero outside of x,

        y[c, i, j] = x[c, i + u − padding, j' + v − padding],   j' = j or width − 1 − j by f.

    Args:
        images: ``(count, channels, height, width)`` of any type; bytes are best, before they are normalised,
            so that the border is black and not grey.
        generator: Where all of it comes from: the same generator, the same result.
        padding: The most pixels of a shift.
    """
    if images.dim() != 4:
        raise ValueError(
            f"`images` must be (count, channels, height, width), got shape {tuple(images.shape)}"
        )
    if padding < 0:
        raise ValueError(f"`padding` must be 0 or more, got {padding}")
    count, channels, height, width = images.shape
    shifts = torch.randint(2 * padding + 1, (2, count, 1), generator=generator)
    is_flipped = torch.randint(2, (count, 1), generator=generator).bool()
    rows = shifts[0] + torch.arange(height)
    columns = shifts[1] + torch.where(is_flipped, torch.arange(width - 1, -1, -1), torch.arange(width))
    padded = F.pad(images, (padding,) * 4)
    return padded[
        torch.arange(count)[:, None, None, None],
        torch.arange(channels)[:, None, None],
        rows[:, None, :, None],
        columns[:, None, None, :],
    ]


def normalised(images: Tensor, mean: Tensor | Sequence[float], std: Tensor | Sequence[float]) -> Tensor:
    """(x / 255 − mean) / std as float32, for bytes ``(count, channels, height, width)``, by channel."""
    mean, std = (torch.as_tensor(value, dtype=torch.float32)[:, None, None] for value in (mean, std))
    return images.to(torch.float32, copy=True).sub_(255 * mean).div_(255 * std)


@dataclass(frozen=True)
class ImageBatches:
    """Training and evaluation batches of one part of `ByteImages`.

    Args:
        part: uint8 images and labels.
        batch: How many in a step.
        mean: Of each channel, for values in [0, 1]; see `ByteImages.mean_std`.
        std: The same.
        seed: Of the order and of what is random in the images.
        augment: Whether training images are shifted by up to 4 pixels and mirrored.
    """

    part: Part
    batch: int
    mean: Tensor | Sequence[float]
    std: Tensor | Sequence[float]
    seed: int = 0
    augment: bool = True

    @property
    def order(self) -> Order:
        """Which images a step has."""
        return Order(len(self.part[1]), self.batch, self.seed)

    def at(self, step: int) -> Part:
        """The training batch of a step, a function of (seed, step): float32 images and int64 labels."""
        epoch, chosen = self.order.at(step)
        images, labels = (tensor[chosen] for tensor in self.part)
        if self.augment:
            images = crop_and_flip(images, generator("augment", self.seed, epoch, step))
        return normalised(images, self.mean, self.std), labels

    def evaluation(self) -> Iterator[Part]:
        """Every image once, as it is; the last batch may be short."""
        for images, labels in zip(*(tensor.split(self.batch) for tensor in self.part), strict=True):
            yield normalised(images, self.mean, self.std), labels
