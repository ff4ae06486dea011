"""CIFAR-10 in three forms: the binary version, the python version, and lossless mosaics with labels.npz."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from topkast.data.cifar_pickle import read_batch_pickle
from topkast.data.find import SOURCES, find
from topkast.data.labelled import ByteImages, Part
from topkast.data.pillow import opened

CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
# Published for the binary version: 10,000 records of one byte of label and 3072 of pixels, plane by plane.
MD5 = {
    "data_batch_1": "5dd7e06a14cb22eb9f671a540d1b7c25",
    "data_batch_2": "5ea93a67294ea407fff1d09f752e9692",
    "data_batch_3": "942cd6a4bcdd0dd3c604fbe906cb4421",
    "data_batch_4": "ae636b3ba5c66a11e91e8cb52e771fcb",
    "data_batch_5": "53f37980c15c3d472c316c40844f3f0d",
    "test_batch": "803d5f7f4d78ea53de84dbe85f74fb6d",
}
_TRAINING = [name for name in MD5 if name.startswith("data")]
_SIDE = 32
_RECORD = 1 + 3 * _SIDE**2
_WHOLE = 10_000
_TILES = 100  # on a side of a mosaic

Arrays = tuple[np.ndarray, np.ndarray]
_Reader = Callable[[Path], Arrays]


def is_cifar10(folder: Path) -> bool:
    """Whether a folder has CIFAR-10 in one of the forms."""
    return _form(folder) is not None


def read_cifar10(path: Path | str | None = None, *, check: bool = True) -> ByteImages:
    """Training and test images; of the five training batches those that there are.

    Args:
        path: A folder with ``data_batch_1.bin`` … and ``test_batch.bin`` (and, if there is one,
            ``batches.meta.txt`` with the names of classes), or with ``data_batch_1`` … of the python version,
            or with ``data_batch_1.webp`` …, mosaics of 100 × 100 images in their order, and ``labels.npz``
            with ``train`` and ``test``; see `find` for None.
        check: Whether a batch of 10,000 images must be the published one; not so for other images in the
            same form.

    Raises:
        FileNotFoundError: None of these, or no test batch.
        ValueError: A damaged or altered batch.
    """
    folder = find("cifar-10", path)
    form = _form(folder)
    if form is None:
        raise FileNotFoundError(
            f"{folder} has no data_batch_1.bin, data_batch_1 or data_batch_1.webp, nor 2 to 5; CIFAR-10 can "
            f"be had from {SOURCES['cifar-10'].origin}"
        )
    suffix, read = form
    batches: dict[str, Arrays] = {}
    for name in MD5:
        path = folder / f"{name}{suffix}"
        if path.is_file():
            batches[name] = read(path)
            if check:
                _check(path, name, *batches[name])
        elif name == "test_batch":
            raise FileNotFoundError(f"{folder} has training batches but no {path.name}")
    training = [batches[name] for name in _TRAINING if name in batches]
    return ByteImages(_part(training), _part([batches["test_batch"]]), _classes(folder))


def _form(folder: Path) -> tuple[str, _Reader] | None:
    for suffix, reader in _READERS.items():
        if any((folder / f"{name}{suffix}").is_file() for name in _TRAINING):
            return suffix, reader
    return None


def _classes(folder: Path) -> tuple[str, ...]:
    names = folder / "batches.meta.txt"
    if not names.is_file():
        return CLASSES
    classes = tuple(names.read_text(encoding="utf-8", errors="replace").split())
    if len(classes) != len(CLASSES):
        raise ValueError(f"{names} must have {len(CLASSES)} names of classes, got {len(classes)}")
    return classes


def _part(batches: list[Arrays]) -> Part:
    images, labels = (np.concatenate(arrays) for arrays in zip(*batches, strict=True))
    return torch.from_numpy(images), torch.from_numpy(labels).long()


def _check(path: Path, name: str, images: np.ndarray, labels: np.ndarray) -> None:
    if len(labels) != _WHOLE:
        return
    records = np.concatenate([labels[:, None], images.reshape(_WHOLE, -1)], axis=1)
    found = hashlib.md5(records.data, usedforsecurity=False).hexdigest()
    if found != MD5[name]:
        raise ValueError(
            f"{path} is damaged: the MD5 of its {_WHOLE:,} records must be {MD5[name]}, got {found}; get the "
            "file again, or give `check=False` if these are images of your own"
        )


def _read_binary(path: Path) -> Arrays:
    raw = np.fromfile(path, np.uint8)
    if raw.size == 0 or raw.size % _RECORD:
        raise ValueError(f"{path} must hold records of {_RECORD} bytes, got {raw.size} bytes")
    records = raw.reshape(-1, _RECORD)
    _check_labels(path, records[:, 0])
    return records[:, 1:].reshape(-1, 3, _SIDE, _SIDE), records[:, 0]


def _read_mosaic(path: Path) -> Arrays:
    pixels = _TILES * _SIDE
    with opened(path) as image:
        size = image.size
        # Looked at before anything is decoded: a hostile size would be memory.
        mosaic = np.asarray(image.convert("RGB")) if size == (pixels, pixels) else None
    if mosaic is None:
        raise ValueError(f"{path} must be a mosaic of {pixels} × {pixels} pixels, got {size[0]} × {size[1]}")
    tiles = mosaic.reshape(_TILES, _SIDE, _TILES, _SIDE, 3).transpose(0, 2, 4, 1, 3)
    labels = _mosaic_labels(path.with_name("labels.npz"), path.stem)
    return tiles.reshape(-1, 3, _SIDE, _SIDE), labels


def _mosaic_labels(path: Path, name: str) -> np.ndarray:
    """The labels of one batch: in ``train`` they are all in a row, also of batches that are not there."""
    if not path.is_file():
        raise FileNotFoundError(f"{path} does not exist: it has the labels of the mosaics")
    key, first = ("test", 0) if name == "test_batch" else ("train", _WHOLE * (int(name[-1]) - 1))
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
            labels = arrays[key]
    except Exception as error:  # numpy has many ways to say that a file is cut, is none, or holds objects
        raise ValueError(f"{path} must be an .npz file with numbers as {key!r}: {error}") from None
    if labels.ndim != 1 or labels.dtype.kind not in "iu" or len(labels) < first + _WHOLE:
        raise ValueError(
            f"{key!r} in {path} must have a label for each of {first + _WHOLE:,} images, got {labels.dtype} "
            f"{labels.shape}"
        )
    labels = labels[first : first + _WHOLE]
    _check_labels(path, labels)
    return labels.astype(np.uint8)


def _check_labels(path: Path, labels: np.ndarray) -> None:
    for extreme in (labels.min(), labels.max()):
        if not 0 <= extreme <= 9:
            raise ValueError(f"{path} has label {extreme}, CIFAR-10 has 0 to 9")


_READERS: dict[str, _Reader] = {".bin": _read_binary, "": read_batch_pickle, ".webp": _read_mosaic}
