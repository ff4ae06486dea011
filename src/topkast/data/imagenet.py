"""ImageNet, or any photographs: an index of files in a folder for each class, or decoded once and mapped.

Both are `Photographs` for an `ImageStream`. A file is read when its image is wanted. Decoded images are
bytes in .npy files, which is the fast way to train on them.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from topkast.data.datasets import DATA_SETS, find_dataset
from topkast.data.image_stream import Photographs, central_box, cut, made_ahead
from topkast.data.labelled import IMAGE_SUFFIXES, opened, pillow
from topkast.store.files import replaced

if TYPE_CHECKING:
    from PIL.Image import Image


# ---- files ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ImageFiles:
    """The files of one part; the index of ImageNet's 1.28 million takes about 100 MB.

    Attributes:
        folder: What has a folder for each class.
        names: Of the files, sorted within each class.
        labels: int64, rising.
        classes: Names of the folders, sorted; for ImageNet such as n01440764.
    """

    folder: Path
    names: tuple[str, ...]
    labels: Tensor
    classes: tuple[str, ...]

    def path(self, index: int) -> Path:
        """The file of an image."""
        return self.folder / self.classes[int(self.labels[index])] / self.names[index]

    def open(self, index: int) -> AbstractContextManager[Image]:
        """The image, not yet decoded; a file that cannot be read is a ValueError that names it."""
        return opened(self.path(index))


def read_imagenet(path: Path | str | None = None) -> tuple[ImageFiles, ImageFiles]:
    """The training and validation images of a folder with ``train`` and ``val``.

    Args:
        path: The folder; see `find_dataset` for None.

    Raises:
        FileNotFoundError: No such folder, or without the two.
        ValueError: Fewer than two classes, a class without images, or one that is only in ``val``.
    """
    folder = find_dataset("imagenet", path)
    for part in ("train", "val"):
        if not (folder / part).is_dir():
            raise FileNotFoundError(
                f"{folder} has no folder {part}; ImageNet can be had from {DATA_SETS['imagenet'].origin}"
            )
    train = index_images(folder / "train")
    return train, index_images(folder / "val", train.classes)


def index_images(folder: Path, classes: tuple[str, ...] | None = None) -> ImageFiles:
    """The image files in the folders of a folder, hidden ones left out.

    Args:
        folder: With a folder for each class.
        classes: Those of the training part, to give others the same labels; not all of them need be there.
    """
    found = _folders(folder)
    if classes is None:
        classes = found
        if len(classes) == 1:
            raise ValueError(f"{folder} has one class only ({found[0]}): there is nothing to tell apart")
    elif not set(found) <= set(classes):
        foreign = min(set(found) - set(classes))
        raise ValueError(f"{folder} has a class that the training images do not have: {foreign}")
    names: list[str] = []
    labels: list[int] = []
    for label, name in enumerate(classes):
        if name in found:
            files = _image_names(folder / name)
            names += files
            labels += [label] * len(files)
    return ImageFiles(folder, tuple(names), torch.tensor(labels, dtype=torch.int64), classes)


def _folders(folder: Path) -> tuple[str, ...]:
    found = sorted(entry.name for entry in os.scandir(folder) if entry.is_dir() and entry.name[0] != ".")
    if not found:
        raise ValueError(f"{folder} must have a folder for each class, with its images in it; it has none")
    return tuple(found)


def _image_names(folder: Path) -> list[str]:
    names = sorted(
        entry.name
        for entry in os.scandir(folder)
        if os.path.splitext(entry.name)[1].lower() in IMAGE_SUFFIXES and entry.name[0] != "."
    )
    if not names:
        raise ValueError(f"{folder} has no images; remove the folder if there is no such class")
    return names


# ---- decoded once --------------------------------------------------------------------------------------

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


def decode_images(source: Photographs, folder: Path, *, side: int = 256, workers: int = 2) -> None:
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
