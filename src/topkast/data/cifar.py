"""CIFAR-10 in three forms: the binary version, the python version, and lossless mosaics with labels.npz."""

from __future__ import annotations

import hashlib
import io
import pickle
import pickletools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from topkast.data.datasets import DATA_SETS, find_dataset
from topkast.data.labelled import ByteImages, Part, opened

# ---- the form for Python, read without running it ------------------------------------------------------

_OPERATIONS = {
    *("PROTO", "STOP", "MARK", "NONE", "NEWFALSE", "NEWTRUE", "BININT", "BININT1", "BININT2"),
    *("LONG1", "BINUNICODE"),
    *("SHORT_BINSTRING", "BINSTRING", "EMPTY_LIST", "APPEND", "APPENDS", "EMPTY_DICT", "SETITEM", "SETITEMS"),
    *("EMPTY_TUPLE", "TUPLE", "TUPLE1", "TUPLE2", "TUPLE3", "GLOBAL", "REDUCE", "BUILD"),
    *("BINPUT", "LONG_BINPUT", "BINGET", "LONG_BINGET"),
}
# A published file has some 31 MB and 40,000 operations; the limits keep a hostile one from filling memory.
_MOST_BYTES = 40_000_000
_MOST_MEMO = 1_000_000
_PIXELS = 3072


class _Record:
    """Remembers how it was called and what state it was given, and does nothing."""

    def __init__(self, *arguments: Any) -> None:
        self.arguments = arguments
        self.state: Any = None

    def __setstate__(self, state: Any) -> None:
        self.state = state


class _Reconstruct(_Record):
    pass


class _Array(_Record):
    pass


class _Type(_Record):
    pass


_NAMES = {
    ("numpy.core.multiarray", "_reconstruct"): _Reconstruct,
    ("numpy", "ndarray"): _Array,
    ("numpy", "dtype"): _Type,
}


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> type[_Record]:
        return _NAMES[module, name]


def read_batch_pickle(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """Images ``(count, 3, 32, 32)`` and labels of a file such as ``data_batch_1``, both uint8.

    Raises:
        ValueError: Damaged, or with anything in it that the published files do not have.
    """
    with path.open("rb") as file:
        raw = file.read(_MOST_BYTES + 1)
    if len(raw) > _MOST_BYTES:
        raise ValueError(f"{path} must have fewer than {_MOST_BYTES:,} bytes to be a batch of CIFAR-10")
    _refuse_foreign(path, raw)
    try:
        content = _Unpickler(io.BytesIO(raw), encoding="bytes").load()
    except Exception as error:  # whatever a program that makes no sense comes to
        raise ValueError(f"{path} is damaged: {error!r}; get the file again") from None
    if not isinstance(content, dict) or not {b"data", b"labels"} <= content.keys():
        raise ValueError(f"{path} must hold a dictionary with `data` and `labels`")
    images = _images(path, content[b"data"])
    return images, _labels(path, content[b"labels"], len(images))


def _refuse_foreign(path: Path, raw: bytes) -> None:
    try:
        for operation, argument, _ in pickletools.genops(raw):
            if operation.name not in _OPERATIONS:
                raise _foreign(path, f"the operation {operation.name}")
            if operation.name == "GLOBAL" and tuple(str(argument).split(" ")) not in _NAMES:
                raise _foreign(path, f"the name {argument!r}")
            if operation.name == "LONG_BINPUT" and int(str(argument)) > _MOST_MEMO:
                raise _foreign(path, f"a memo of {argument}")
    except _ForeignError:
        raise
    except Exception as error:  # genops has many ways to say that a file is cut or is none
        raise ValueError(f"{path} is no pickle, or a damaged one: {error}; get the file again") from None


class _ForeignError(ValueError):
    pass


def _foreign(path: Path, what: str) -> _ForeignError:
    return _ForeignError(
        f"{path} is not a batch of CIFAR-10: it has {what}, which the published files do not have and which "
        "could run code; nothing of it was run. Use the binary version, or a file from its source"
    )


def _images(path: Path, data: Any) -> np.ndarray:
    """The array that the records describe: version, shape, type, order and bytes."""
    rule = f"`data` in {path} must be an array of bytes, {_PIXELS} for each image"
    state = data.state if isinstance(data, _Reconstruct) else None
    if not isinstance(state, tuple) or len(state) != 5:
        raise ValueError(rule)
    _, shape, kind, is_fortran, content = state
    is_of_bytes = isinstance(kind, _Type) and kind.arguments[:1] == (b"u1",) and isinstance(content, bytes)
    if not is_of_bytes:
        raise ValueError(f"{rule}, got another type")
    if not isinstance(shape, tuple) or len(shape) != 2 or shape[1] != _PIXELS:
        raise ValueError(f"{rule}, got shape {shape!r}"[:500])
    if shape[0] * _PIXELS != len(content) or not content:
        raise ValueError(f"{rule}, got {len(content):,} bytes for shape {shape}")
    array = np.frombuffer(content, np.uint8).reshape(shape, order="F" if is_fortran else "C")
    return np.ascontiguousarray(array).reshape(-1, 3, 32, 32)


def _labels(path: Path, labels: Any, count: int) -> np.ndarray:
    if not isinstance(labels, list) or len(labels) != count:
        raise ValueError(f"`labels` in {path} must be a list of {count:,} numbers")
    if not all(type(label) is int and 0 <= label <= 9 for label in labels):
        wrong = next(label for label in labels if type(label) is not int or not 0 <= label <= 9)
        raise ValueError(f"{path} has label {wrong!r}, CIFAR-10 has 0 to 9"[:500])
    return np.array(labels, np.uint8)


# ---- the set -------------------------------------------------------------------------------------------

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
        path: A folder in one of three forms; see `find_dataset` for None. The first has
            ``data_batch_1.bin`` …, ``test_batch.bin`` and perhaps ``batches.meta.txt`` with the names of
            classes. The second has ``data_batch_1`` … of the python version. The third has
            ``data_batch_1.webp`` …, mosaics of 100 × 100 images in their order, and ``labels.npz`` with
            ``train`` and ``test``.
        check: Whether a batch of 10,000 images must be the published one; not so for other images in the
            same form.

    Raises:
        FileNotFoundError: None of these, or no test batch.
        ValueError: A damaged or altered batch.
    """
    folder = find_dataset("cifar-10", path)
    form = _form(folder)
    if form is None:
        raise FileNotFoundError(
            f"{folder} has no data_batch_1.bin, data_batch_1 or data_batch_1.webp, nor 2 to 5; CIFAR-10 can "
            f"be had from {DATA_SETS['cifar-10'].origin}"
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
