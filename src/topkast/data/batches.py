"""Batches of images that are bytes in memory: shuffled, augmented and normalised when a step wants them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from topkast.data.augment import crop_and_flip
from topkast.data.draw import generator
from topkast.data.labelled import Part
from topkast.data.order import Order


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
