"""Small images in a folder for each class, all read into memory at one size."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from topkast.data.labelled import ByteImages, Part
from topkast.data.pillow import SUFFIXES, opened
from topkast.data.text import is_held_out

_HELD_OUT_FOLDERS = ("val", "valid", "validation", "test")


def read_class_folders(folder: Path, side: int) -> ByteImages:
    """One folder per class, in ``train`` and ``val`` or ``test``, else one image in ten is held out."""
    train = folder / "train"
    others = [folder / name for name in _HELD_OUT_FOLDERS if (folder / name).is_dir()]
    if train.is_dir() and others:
        classes = _classes(train)
        learned, held_out = (_load(_files(place, classes), side) for place in (train, others[0]))
        return ByteImages(learned, held_out, classes)
    classes = _classes(folder)
    files = _files(folder, classes)
    split: tuple[list[Any], list[Any]] = ([], [])
    for path, label in files:
        split[is_held_out(path.relative_to(folder).as_posix())].append((path, label))
    if not split[1]:  # too few for one in ten
        split = ([f for i, f in enumerate(files) if i % 10], files[::10])
    return ByteImages(_load(split[0], side), _load(split[1], side), classes)


def _classes(folder: Path) -> tuple[str, ...]:
    found = sorted(p.name for p in folder.iterdir() if p.is_dir() and not p.name.startswith("."))
    if not found:
        raise FileNotFoundError(
            f"{folder} has neither MNIST's idx files, nor CIFAR-10's data_batch_1 (.bin, .webp or python), "
            "nor a folder for each class"
        )
    return tuple(found)


def _files(folder: Path, classes: tuple[str, ...]) -> list[tuple[Path, int]]:
    return [
        (path, label)
        for label, name in enumerate(classes)
        for path in sorted((folder / name).rglob("*"))
        if path.suffix.lower() in SUFFIXES
    ]


def _load(files: list[tuple[Path, int]], side: int) -> Part:
    images = torch.empty(len(files), 3, side, side, dtype=torch.uint8)
    for image, (path, _) in zip(images, files, strict=True):
        image.copy_(_image(path, side))
    return images, torch.tensor([label for _, label in files], dtype=torch.int64)


def _image(path: Path, side: int) -> Tensor:
    """The middle square, resized: ``(3, side, side)``."""
    with opened(path) as image:
        from PIL import ImageOps

        square = ImageOps.fit(image.convert("RGB"), (side, side))
    return torch.from_numpy(np.array(square)).permute(2, 0, 1)
