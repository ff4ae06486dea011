"""Labelled images from a folder: idx files, CIFAR-10 in any form, or a folder of images for each class."""

from __future__ import annotations

from pathlib import Path

import torch

from topkast.data.cifar import is_cifar10, read_cifar10
from topkast.data.class_folders import read_class_folders
from topkast.data.idx import read_byte_images
from topkast.data.labelled import ByteImages, Images

__all__ = ["ByteImages", "Images", "read_byte_folder", "read_folder"]


def read_folder(folder: Path, side: int = 32) -> Images:
    """Whatever labelled images a folder has, as numbers in [0, 1]; see `read_byte_folder`."""
    return read_byte_folder(folder, side).floats()


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
        images = read_class_folders(folder, side)
    for name, (_, labels) in (("training", images.train), ("held-out", images.held_out)):
        if len(labels) == 0:
            raise ValueError(f"{folder} has no {name} images")
    if len(torch.unique(images.train[1])) < 2:
        raise ValueError(f"{folder} has images of one class only: there is nothing to tell apart")
    return images


def _from_idx(folder: Path) -> ByteImages:
    (x, y), (x_test, y_test) = (read_byte_images(folder, part) for part in ("train", "t10k"))
    count = 1 + max([*y.tolist(), *y_test.tolist()], default=-1)
    classes = tuple(str(label) for label in range(count))
    return ByteImages((x.unsqueeze(1), y), (x_test.unsqueeze(1), y_test), classes)
