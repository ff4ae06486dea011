"""ImageNet, or any photographs, in a folder for each class: an index of files that are read when wanted."""

from __future__ import annotations

import os
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from topkast.data.files import DATA_SETS, find
from topkast.data.labelled import SUFFIXES, opened

if TYPE_CHECKING:
    from PIL.Image import Image


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
        path: The folder; see `find` for None.

    Raises:
        FileNotFoundError: No such folder, or without the two.
        ValueError: Fewer than two classes, a class without images, or one that is only in ``val``.
    """
    folder = find("imagenet", path)
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
        if os.path.splitext(entry.name)[1].lower() in SUFFIXES and entry.name[0] != "."
    )
    if not names:
        raise ValueError(f"{folder} has no images; remove the folder if there is no such class")
    return names
