"""The idx format of MNIST and Fashion-MNIST, plain or gzipped."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from topkast.data.packed import Packed

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


def read_images(folder: Path, part: str) -> tuple[Tensor, Tensor]:
    """Images in [0, 1] and labels of one part ("train" or "t10k") of an MNIST-like folder."""
    images, labels = read_byte_images(folder, part)
    return images.float() / 255, labels


def read_byte_images(folder: Path, part: str) -> tuple[Tensor, Tensor]:
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
