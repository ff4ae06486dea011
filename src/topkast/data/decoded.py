"""Photographs decoded once and kept as bytes in .npy files that are mapped: the fast way to train on them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from topkast.data.augment import central_box, cut
from topkast.data.image_stream import Source, made_ahead
from topkast.data.labelled import pillow
from topkast.store.files import replaced

if TYPE_CHECKING:
    from PIL.Image import Image

_AT_ONCE = 64


@dataclass(frozen=True)
class DecodedImages:
    """Squares of one size.

    Attributes:
        images: uint8 ``(count, side, side, 3)``, mapped.
        labels: int64.
        classes: Names, by label.
    """

    images: np.ndarray
    labels: Tensor
    classes: tuple[str, ...]

    @contextmanager
    def open(self, index: int) -> Iterator[Image]:
        """One image."""
        yield pillow().fromarray(self.images[index])


def decode_images(source: Source, folder: Path, *, side: int = 256, workers: int = 2) -> None:
    """Writes ``images.npy``, ``labels.npy`` and ``classes.json``: the middle square of every image.

    ImageNet at 256 pixels takes 252 GB and is read without decoding; what is beside the middle square
    is lost to training.

    Args:
        source: Such as `ImageFiles`.
        folder: Where to; made if need be. A file is written whole or not at all, the images last.
        side: Pixels on a side.
        workers: Threads that decode.

    Raises:
        ValueError: An image that cannot be read.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with replaced(folder / "classes.json") as file:
        file.write(json.dumps(source.classes).encode())
    with replaced(folder / "labels.npy") as file:
        np.save(file, source.labels.numpy(), allow_pickle=False)
    numbers = torch.arange(len(source.labels)).split(_AT_ONCE)

    def square(index: int) -> np.ndarray:
        with source.open(index) as image:
            return cut(image, central_box(*image.size, 1.0), side)

    with replaced(folder / "images.npy") as file:
        shape = (len(source.labels), side, side, 3)
        np.lib.format.write_array_header_1_0(file, {"descr": "|u1", "fortran_order": False, "shape": shape})
        for images in made_ahead(square, (some.tolist() for some in numbers), workers=workers, ahead=2):
            for image in images:
                file.write(np.ascontiguousarray(image).data)


def open_decoded(folder: Path | str) -> DecodedImages:
    """What `decode_images` wrote, or other images in the same form.

    Raises:
        FileNotFoundError: One of the three files is missing.
        ValueError: They are damaged, or do not fit to one another.
    """
    folder = Path(folder)
    for name in ("images.npy", "labels.npy", "classes.json"):
        if not (folder / name).is_file():
            raise FileNotFoundError(f"{folder} has no {name}; `decode_images` makes it from image files")
    images, labels = _array(folder / "images.npy"), _array(folder / "labels.npy")
    if images.dtype != np.uint8 or images.ndim != 4 or images.shape[3] != 3:
        raise ValueError(
            f"{folder / 'images.npy'} must be uint8 (count, height, width, 3), "
            f"got {images.dtype} {images.shape}"
        )
    if labels.dtype.kind not in "iu" or labels.shape != images.shape[:1] or len(labels) == 0:
        raise ValueError(
            f"{folder / 'labels.npy'} must have a number for each of {len(images)} images, "
            f"got {labels.dtype} {labels.shape}"
        )
    classes = _classes(folder / "classes.json")
    if labels.min() < 0 or labels.max() >= len(classes):
        raise ValueError(
            f"{folder / 'labels.npy'} must have labels below {len(classes)}, the number of classes, got "
            f"{labels.min()} to {labels.max()}"
        )
    return DecodedImages(images, torch.from_numpy(labels.astype(np.int64)), classes)


def _array(path: Path) -> np.ndarray:
    try:
        return np.load(path, mmap_mode="r", allow_pickle=False)
    except (ValueError, EOFError, OSError) as error:
        raise ValueError(f"{path} is damaged, or no array of numbers: {error}") from None


def _classes(path: Path) -> tuple[str, ...]:
    try:
        classes = json.loads(path.read_bytes())
    except ValueError as error:
        raise ValueError(f"{path} is damaged: {error}") from None
    if not isinstance(classes, list) or not all(isinstance(name, str) for name in classes):
        raise ValueError(f"{path} must have a list of names")
    return tuple(classes)
