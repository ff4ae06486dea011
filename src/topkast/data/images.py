"""Labelled images from a folder: idx files, CIFAR-10 in any form, or a folder of images for each class.

And those that come with a pip dependency, scikit-learn's handwritten digits.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from topkast.data.cifar import is_cifar10, read_cifar10
from topkast.data.datasets import Packed
from topkast.data.labelled import IMAGE_SUFFIXES, ByteImages, Part, opened
from topkast.data.plain_text import is_held_out

# ---- the idx format of MNIST and Fashion-MNIST, plain or gzipped ---------------------------------------

_UNSIGNED_BYTE = 8
# A file that unpacks to more than any such set has is hostile.
_MOST_BYTES = 1 << 31


def read_idx(path: Path) -> Tensor:
    """The array in an idx file of unsigned bytes.

    Raises:
        ValueError: Damaged, not an idx file of bytes, or shorter or longer than its header says.
    """
    raw = Packed(path).read(_MOST_BYTES)
    if len(raw) < 4 or raw[:2] != b"\0\0" or raw[2] != _UNSIGNED_BYTE:
        raise ValueError(f"{path} is not an idx file of unsigned bytes")
    dims = raw[3]
    header = 4 + 4 * dims
    if len(raw) < header:
        raise ValueError(f"{path} ends within its header")
    shape = tuple(int(n) for n in np.frombuffer(raw, ">u4", count=dims, offset=4))
    if len(raw) - header != math.prod(shape):
        raise ValueError(f"{path} must hold {shape} bytes after its header, got {len(raw) - header}")
    return torch.from_numpy(np.frombuffer(raw, np.uint8, offset=header).reshape(shape))


def read_images(folder: Path, part: str) -> Part:
    """Images in [0, 1] and labels of one part ("train" or "t10k") of an MNIST-like folder."""
    images, labels = _read_part(folder, part)
    return images.float() / 255, labels


def _read_part(folder: Path, part: str) -> Part:
    """The same with images as uint8."""
    images, labels = (
        read_idx(_find(folder, f"{part}-{kind}-ubyte")) for kind in ("images-idx3", "labels-idx1")
    )
    if len(images) != len(labels):
        raise ValueError(f"{folder}: {len(images)} {part} images but {len(labels)} labels")
    return images, labels.long()


def _find(folder: Path, name: str) -> Path:
    for path in (folder / f"{name}.gz", folder / name):
        if path.is_file():
            return path
    raise FileNotFoundError(f"{folder} has neither {name}.gz nor {name}")


# ---- a folder for each class ---------------------------------------------------------------------------

_HELD_OUT_FOLDERS = ("val", "valid", "validation", "test")


def _from_class_folders(folder: Path, side: int) -> ByteImages:
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
        if path.suffix.lower() in IMAGE_SUFFIXES
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


# ---- whichever a folder has ----------------------------------------------------------------------------


def read_byte_folder(folder: Path, side: int = 32) -> ByteImages:
    """Whatever labelled images a folder has, as bytes.

    Args:
        folder: With MNIST's four idx files (gzipped or not), with CIFAR-10 in a form that `read_cifar10`
            reads, with a folder of images for each class, or with such folders in ``train`` and ``val``.
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
    elif is_cifar10(folder):
        images = read_cifar10(folder)
    else:
        images = _from_class_folders(folder, side)
    for name, (_, labels) in (("training", images.train), ("held-out", images.held_out)):
        if len(labels) == 0:
            raise ValueError(f"{folder} has no {name} images")
    if len(torch.unique(images.train[1])) < 2:
        raise ValueError(f"{folder} has images of one class only: there is nothing to tell apart")
    return images


def _from_idx(folder: Path) -> ByteImages:
    (x, y), (x_test, y_test) = (_read_part(folder, part) for part in ("train", "t10k"))
    count = 1 + max([*y.tolist(), *y_test.tolist()], default=-1)
    classes = tuple(str(label) for label in range(count))
    return ByteImages((x.unsqueeze(1), y), (x_test.unsqueeze(1), y_test), classes)


# ---- what is on every machine with scikit-learn ----------------------------------------------------------


def digits(seed: int = 0) -> tuple[Part, Part]:
    """1,797 handwritten digits, 8 × 8, in [0, 1]: (images, labels) to train on, and of the fifth held out.

    Raises:
        ImportError: scikit-learn is not installed.
    """
    try:
        from sklearn.datasets import load_digits
    except ImportError as error:
        raise ImportError(
            "the digits come with scikit-learn, which is not installed: pip install 'topkast[images]'"
        ) from error
    bunch = load_digits()
    images = torch.tensor(bunch.images, dtype=torch.float32) / 16  # pyright: ignore[reportAttributeAccessIssue]
    labels = torch.tensor(bunch.target, dtype=torch.int64)  # pyright: ignore[reportAttributeAccessIssue]
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed))
    held_out, train = order[: len(labels) // 5], order[len(labels) // 5 :]
    return (images[train], labels[train]), (images[held_out], labels[held_out])
