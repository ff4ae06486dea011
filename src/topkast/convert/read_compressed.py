"""Reads a network that `topkast export --format compressed` has written. Needs numpy and nothing else.

It can be copied beside a program that has neither torch nor topkast:

    weights = read("model.safetensors")            # name → array, with zeros
    rows = read("model.safetensors", dense=False)  # sparse ones as (values, columns, offsets, shape)
"""

import json
import math
import os

import numpy as np

_TYPES = {
    "F64": "<f8", "F32": "<f4", "F16": "<f2", "I64": "<i8", "I32": "<i4", "I16": "<i2", "I8": "i1",
    "U64": "<u8", "U32": "<u4", "U16": "<u2", "U8": "u1", "BOOL": "?",
}  # fmt: skip
# As many as every version of numpy can have.
_MAX_DIMS = 32
# How many bytes of dense arrays a file may ask for: so many times its own, but always this many. An element
# of A takes more bytes in the file than one in memory, so networks with up to 99.95 % zeros are within.
_MAX_RATIO, _ALWAYS_ALLOWED = 2000, 1 << 26


def read(path: "str | os.PathLike[str]", dense: bool = True, max_bytes: "int | None" = None) -> dict:
    """The arrays of a compressed network, by the names of the dense network's state_dict.

    Args:
        path: The file.
        dense: Whether sparse weights are given as dense arrays; else as (values, columns, offsets, shape).
            Tied weights are one and the same object.
        max_bytes: The most that dense arrays of sparse weights may take, together. By default 2000 times the
            size of the file, or 64 MiB if that is more: a small file cannot ask for all of the memory.
            Networks with more than 99.95 % zeros may need a larger one.

    Raises:
        ValueError: It is not such a file, or one that was altered, or it would take too much memory.
        OSError: It cannot be read.
    """
    arrays, metadata = _safetensors(path)
    _check_format(path, metadata)
    weights = {}
    limit = max(_MAX_RATIO * os.path.getsize(path), _ALWAYS_ALLOWED) if max_bytes is None else max_bytes
    total = 0
    for name, shape in _table(path, metadata, "shapes").items():
        parts = [arrays.pop(f"{name}.{part}", None) for part in ("values", "columns", "offsets")]
        if any(part is None for part in parts):
            raise ValueError(f"{path}: {name} must have values, columns and offsets")
        values, columns, offsets = parts
        _check(f"{path}: {name}", values, columns, offsets, shape)
        sparse = (values, columns, offsets, tuple(shape))
        if dense:
            total += math.prod(shape) * values.itemsize
            if total > limit:
                raise ValueError(
                    f"{path}: up to {name}, dense arrays take {total:,} bytes, more than {limit:,}; "
                    "if you trust the file, give a larger `max_bytes`, or use dense=False"
                )
        weights[name] = _dense(f"{path}: {name}", *sparse) if dense else sparse
    weights.update(arrays)
    for name, owner in _table(path, metadata, "tied").items():
        if not isinstance(owner, str) or owner not in weights:
            raise ValueError(f"{path}: {name} is tied to {owner}, which is not there")
        weights[name] = weights[owner]
    return weights


def read_metadata(path: "str | os.PathLike[str]") -> dict:
    """What the file says of itself, as strings by name: `network`, `inputs`, `step` and others.

    Raises:
        ValueError: It is not such a file.
        OSError: It cannot be read.
    """
    with open(path, "rb") as file:
        _, metadata, _ = _header(path, file)
    _check_format(path, metadata)
    return metadata


def _check_format(path, metadata):
    if metadata.get("format") != "topkast-compressed":
        raise ValueError(f"{path} is no compressed network of topkast: its metadata do not say so")
    if metadata.get("version") != "1":
        raise ValueError(f"{path} has version {metadata.get('version')!r}, this reader knows version '1'")


def _header(path, file):
    """The entries of all arrays, the metadata, and the length of the header."""
    size = os.path.getsize(path)
    length = int.from_bytes(file.read(8), "little")
    if size < 8 or length > min(size - 8, 100_000_000):
        raise ValueError(f"{path} is not a safetensors file: its header is longer than it may be")
    try:
        header = json.loads(file.read(length))
        metadata = header.pop("__metadata__", {})
        entries = [(name, entry["dtype"], entry["shape"], entry["data_offsets"])
                   for name, entry in header.items()]  # fmt: skip
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise ValueError(f"{path} is not a safetensors file: {error!r} in its header") from None
    if not isinstance(metadata, dict) or not all(isinstance(text, str) for text in metadata.values()):
        raise ValueError(f"{path} is not a safetensors file: its metadata are no table of strings")
    return entries, metadata, length


def _safetensors(path):
    """Arrays and metadata: eight bytes of header length, a JSON header, the arrays."""
    size = os.path.getsize(path)
    with open(path, "rb") as file:
        entries, metadata, length = _header(path, file)
        arrays = {}
        left = size - 8 - length  # arrays that overlap would make many out of one
        for name, kind, shape, offsets in entries:
            if not isinstance(kind, str) or kind not in _TYPES:
                raise ValueError(f"{path}: {name} has type {kind!r}; numpy has no such type")
            if not _is_shape(shape):
                raise ValueError(f"{path}: {name} has bad shape {shape!r}")
            if not _are_sizes(offsets) or len(offsets) != 2 or offsets[1] > size - 8 - length:
                raise ValueError(f"{path}: {name} lies outside the file, which was cut or altered")
            start, end = offsets
            left -= end - start
            if left < 0:
                raise ValueError(f"{path}: {name} overlaps with another array")
            dtype = np.dtype(_TYPES[kind])
            if end - start != math.prod(shape) * dtype.itemsize:
                raise ValueError(f"{path}: {name} has {end - start} bytes, not those of shape {shape}")
            file.seek(8 + length + start)
            arrays[name] = np.frombuffer(file.read(end - start), dtype).reshape(shape)
    return arrays, metadata


def _are_sizes(numbers):
    return isinstance(numbers, list) and all(type(n) is int and n >= 0 for n in numbers)


def _is_shape(numbers):
    """Whether numpy can have such an array. A size of zero does not excuse the others."""
    return _are_sizes(numbers) and len(numbers) <= _MAX_DIMS and math.prod(max(1, n) for n in numbers) < 2**60


def _table(path, metadata, name):
    try:
        table = json.loads(metadata[name])
    except (KeyError, ValueError, TypeError, RecursionError):
        table = None
    if not isinstance(table, dict):
        raise ValueError(f"{path}: its metadata must have {name!r}")
    return table


def _check(where, values, columns, offsets, shape):
    """Every index is in its place, so that whoever computes with them need not look."""
    if not _is_shape(shape) or not shape:
        raise ValueError(f"{where}: bad shape {shape!r}")
    rows = shape[0]
    width = math.prod(shape[1:])
    kinds = columns.dtype.kind in "iu" and offsets.dtype.kind in "iu"
    if not kinds or offsets.shape != (rows + 1,) or columns.shape != values.shape or values.ndim != 1:
        raise ValueError(f"{where}: values, columns and offsets do not fit shape {shape}")
    ends = offsets.astype(np.int64)
    if ends[0] != 0 or ends[-1] != len(values) or (np.diff(ends) < 0).any():
        raise ValueError(f"{where}: offsets must rise from 0 to the number of values")
    if len(columns) and not 0 <= int(columns.min()) <= int(columns.max()) < width:
        raise ValueError(f"{where}: columns must be from 0 to {width - 1}")
    row = np.repeat(np.arange(rows), np.diff(ends))
    if (np.diff(row * width + columns.astype(np.int64)) <= 0).any():
        raise ValueError(f"{where}: columns must ascend within a row")


def _dense(where, values, columns, offsets, shape):
    try:
        weight = np.zeros((shape[0], math.prod(shape[1:])), values.dtype)
    except MemoryError:
        raise ValueError(f"{where}: there is no memory for shape {list(shape)}; use dense=False") from None
    row = np.repeat(np.arange(shape[0]), np.diff(offsets.astype(np.int64)))
    weight[row, columns.astype(np.int64)] = values
    return weight.reshape(shape)
