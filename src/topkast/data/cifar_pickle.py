"""CIFAR-10's python version: pickles of which only the few operations that they need are carried out.

A pickle is a program: the plain unpickler calls whatever function the file names. Here the operations are
looked through first, and any that the published files do not have is refused; of names three are known, and
they stand for records of ours that remember what they are given. Not even numpy sees what the file says
before it has been checked.
"""

from __future__ import annotations

import io
import pickle
import pickletools
from pathlib import Path
from typing import Any

import numpy as np

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
