"""Labelled images from a folder: idx files, CIFAR-10's binary files, or a folder of images for each class."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from topkast.data.idx import read_images
from topkast.data.text import is_held_out

_CIFAR_SIDE = 32
_CIFAR_RECORD = 1 + 3 * _CIFAR_SIDE**2
_SUFFIXES = {".png", ".jpg", ".jpeg", ".webp", ".bmp", ".gif", ".ppm", ".pgm", ".tif", ".tiff"}
_HELD_OUT_FOLDERS = ("val", "valid", "validation", "test")
Part = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Images:
    """Training and held-out images.

    Attributes:
        train: Images ``(count, channels, height, width)`` in [0, 1], and labels.
        held_out: The same.
        classes: Names, by label.
    """

    train: Part
    held_out: Part
    classes: tuple[str, ...]


def read_folder(folder: Path, side: int = 32) -> Images:
    """Whatever labelled images a folder has.

    Args:
        folder: With MNIST's four idx files (gzipped or not), with CIFAR-10's ``data_batch_*.bin``, with a
            folder of images for each class, or with such folders in ``train`` and ``val``.
        side: Pixels on a side that images of a class folder are brought to.

    Raises:
        FileNotFoundError: No such folder, or nothing in it that is known.
        ValueError: Files that are damaged, an unreadable image, or one class only.
    """
    if not folder.is_dir():
        raise FileNotFoundError(f"{folder} is not a folder")
    names = {p.name.removesuffix(".gz") for p in folder.iterdir()}
    if "train-images-idx3-ubyte" in names:
        images = _from_idx(folder)
    elif any(folder.glob("data_batch_*.bin")):
        images = _from_cifar(folder)
    else:
        images = _from_class_folders(folder, side)
    for name, (_, labels) in (("training", images.train), ("held-out", images.held_out)):
        if len(labels) == 0:
            raise ValueError(f"{folder} has no {name} images")
    if len(torch.unique(images.train[1])) < 2:
        raise ValueError(f"{folder} has images of one class only: there is nothing to tell apart")
    return images


def _from_idx(folder: Path) -> Images:
    (x, y), (x_test, y_test) = (read_images(folder, part) for part in ("train", "t10k"))
    classes = tuple(str(label) for label in range(int(max(y.max(), y_test.max())) + 1))
    return Images((x.unsqueeze(1), y), (x_test.unsqueeze(1), y_test), classes)


def _from_cifar(folder: Path) -> Images:
    """Records of one byte of label and 3072 of pixels, plane by plane."""
    train = [_cifar_file(path) for path in sorted(folder.glob("data_batch_*.bin"))]
    held_out = _cifar_file(folder / "test_batch.bin")
    names = folder / "batches.meta.txt"
    classes = names.read_text().split() if names.is_file() else [str(label) for label in range(10)]
    x, y = (torch.cat(parts) for parts in zip(*train, strict=True))
    return Images((x, y), held_out, tuple(classes))


def _cifar_file(path: Path) -> Part:
    raw = np.fromfile(path, np.uint8)
    if raw.size == 0 or raw.size % _CIFAR_RECORD:
        raise ValueError(f"{path} must hold records of {_CIFAR_RECORD} bytes, got {raw.size} bytes")
    records = torch.from_numpy(raw.reshape(-1, _CIFAR_RECORD))
    labels = records[:, 0].long()
    if int(labels.max()) > 9:
        raise ValueError(f"{path} has label {int(labels.max())}, CIFAR-10 has 0 to 9")
    return records[:, 1:].view(-1, 3, _CIFAR_SIDE, _CIFAR_SIDE).float() / 255, labels


def _from_class_folders(folder: Path, side: int) -> Images:
    """One folder per class, in ``train`` and ``val`` or ``test``, else one image in ten is held out."""
    train = folder / "train"
    others = [folder / name for name in _HELD_OUT_FOLDERS if (folder / name).is_dir()]
    if train.is_dir() and others:
        classes = _classes(train)
        return Images(_load(_files(train, classes), side), _load(_files(others[0], classes), side), classes)
    classes = _classes(folder)
    files = _files(folder, classes)
    split: tuple[list[Any], list[Any]] = ([], [])
    for path, label in files:
        split[is_held_out(path.relative_to(folder).as_posix())].append((path, label))
    if not split[1]:  # too few for one in ten
        split = ([f for i, f in enumerate(files) if i % 10], files[::10])
    return Images(_load(split[0], side), _load(split[1], side), classes)


def _classes(folder: Path) -> tuple[str, ...]:
    found = sorted(p.name for p in folder.iterdir() if p.is_dir() and not p.name.startswith("."))
    if not found:
        raise FileNotFoundError(
            f"{folder} has neither MNIST's idx files, nor CIFAR-10's data_batch_*.bin, "
            "nor a folder for each class"
        )
    return tuple(found)


def _files(folder: Path, classes: tuple[str, ...]) -> list[tuple[Path, int]]:
    return [
        (path, label)
        for label, name in enumerate(classes)
        for path in sorted((folder / name).rglob("*"))
        if path.suffix.lower() in _SUFFIXES
    ]


def _load(files: list[tuple[Path, int]], side: int) -> Part:
    if not files:
        return torch.empty(0, 3, side, side), torch.empty(0, dtype=torch.int64)
    return torch.stack([_image(path, side) for path, _ in files]), torch.tensor([label for _, label in files])


def _image(path: Path, side: int) -> Tensor:
    """The middle square, resized: ``(3, side, side)``."""
    try:
        from PIL import Image, ImageOps
    except ImportError as error:
        raise ImportError(
            "image files need Pillow, which is not installed: pip install 'topkast[images]'"
        ) from error
    try:
        with Image.open(path) as image:
            square = ImageOps.fit(image.convert("RGB"), (side, side))
    except Exception as error:  # whatever a decoder raises for a damaged file
        raise ValueError(f"{path} cannot be read as an image: {error}") from None
    return torch.from_numpy(np.array(square)).permute(2, 0, 1).float() / 255
