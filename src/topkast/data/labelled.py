"""Labelled images in memory, as bytes, and image files through Pillow, which is an extra."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

if TYPE_CHECKING:
    from PIL.Image import Image


Part = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class ByteImages:
    """Training and held-out images as bytes; `ImageBatches` makes numbers of a batch at a time.

    Attributes:
        train: uint8 images ``(count, channels, height, width)``, and int64 labels.
        held_out: The same.
        classes: Names, by label.
    """

    train: Part
    held_out: Part
    classes: tuple[str, ...]

    def mean_std(self) -> tuple[Tensor, Tensor]:
        """Mean and standard deviation of each channel over the training images, of values in [0, 1].

        From how often each byte occurs, hence exact: with counts n_v, mean = Σ n_v v / Σ n_v and
        variance = Σ n_v (v − mean)² / Σ n_v.
        """
        images = self.train[0]
        channels = images.shape[1]
        counts = torch.zeros(channels, 256, dtype=torch.float64)
        for some in images.split(1000):  # bincount makes a copy of 8 bytes for each
            for channel in range(channels):
                counts[channel] += torch.bincount(some[:, channel].flatten(), minlength=256)
        values = torch.arange(256, dtype=torch.float64) / 255
        total = counts.sum(1)
        mean = counts @ values / total
        variance = (counts * (values - mean[:, None]) ** 2).sum(1) / total
        # One value throughout has no size to divide by.
        return mean.float(), variance.sqrt().clamp(min=1e-6).float()


# ---- image files ---------------------------------------------------------------------------------------

IMAGE_SUFFIXES = {".png", ".jpg", ".jpeg", ".webp", ".bmp", ".gif", ".ppm", ".pgm", ".tif", ".tiff"}


def pillow() -> Any:
    """The module `PIL.Image`."""
    try:
        from PIL import Image
    except ImportError as error:
        raise ImportError(
            "image files need Pillow, which is not installed: pip install 'topkast[images]'"
        ) from error
    return Image


@contextmanager
def opened(path: Path) -> Iterator[Image]:
    """An image file; what fails in the `with` block is taken for the file's fault, as pixels are read there.

    Raises:
        ValueError: The file cannot be read as an image.
    """
    module = pillow()
    try:
        with module.open(path) as image:
            yield image
    except FileNotFoundError:
        raise
    except Exception as error:  # whatever a decoder raises for a damaged file
        raise ValueError(f"{path} cannot be read as an image: {error}") from None
