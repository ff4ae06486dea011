"""Checking a checkpoint's files before anything in them is believed."""

from __future__ import annotations

import hashlib
import os
import stat
from pathlib import Path
from typing import Any

from topkast.train import manifest
from topkast.train.manifest import Manifest

TENSORS, STATE = "tensors.safetensors", "state.json"
_FILES = {TENSORS, STATE}


class CheckpointError(ValueError):
    """A checkpoint is damaged, incomplete, or not one. The message begins with the file."""


def read_manifest(folder: Path, step: int) -> Manifest:
    """The manifest of a checkpoint, which is checked, and that its files are there and no others.

    Raises:
        CheckpointError: Something is wrong; the file is named.
    """
    path = folder / manifest.NAME
    try:
        names = set(os.listdir(folder))
    except OSError as error:
        raise CheckpointError(f"{folder} cannot be read ({error.strerror})") from error
    if manifest.NAME not in names:
        raise CheckpointError(f"{path} is missing: the checkpoint is incomplete")
    size = _size(path)
    if size > manifest.MAX_SIZE:
        raise CheckpointError(f"{path} has {size:,} bytes, more than the {manifest.MAX_SIZE:,} it may have")
    text = _read(path)
    try:
        content = manifest.parse(text)
    except ValueError as error:
        raise CheckpointError(f"{path}: {error}") from error
    if content.step != step:
        raise CheckpointError(f"{path} is that of another checkpoint (step {content.step})")
    if content.files.keys() != _FILES:  # before any of them is opened: a name may lead anywhere
        raise CheckpointError(f"{path} must list {' and '.join(sorted(_FILES))}, and nothing else")
    for name in sorted(_FILES - names):
        raise CheckpointError(f"{folder / name} is missing")
    for name in sorted(names - _FILES - {manifest.NAME}):
        raise CheckpointError(f"{folder / name} does not belong to the checkpoint")
    return content


def check_files(folder: Path, step: int, *, thoroughly: bool = False) -> Manifest:
    """Checks that all files are there in the right size, or thoroughly: that every byte is right.

    Raises:
        CheckpointError: Something is wrong; the file is named.
    """
    content = read_manifest(folder, step)
    for name, file in content.files.items():
        if thoroughly:
            read_checked(folder / name, file)
        else:
            _check_size(folder / name, _size(folder / name), file["size"])
    return content


def read_checked(path: Path, file: dict[str, Any]) -> bytes:
    """A file whose size and digest the manifest gives.

    Raises:
        CheckpointError: It has another size or digest, or cannot be read.
    """
    _check_size(path, _size(path), file["size"])  # first: a file of another size may be of any size
    content = _read(path)
    _check_size(path, len(content), file["size"])
    if hashlib.sha256(content).hexdigest() != file["sha256"]:
        raise CheckpointError(f"{path} was altered: its SHA-256 is not the one in {manifest.NAME}")
    return content


def _size(path: Path) -> int:
    try:
        status = path.lstat()
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read ({error.strerror})") from error
    if not stat.S_ISREG(status.st_mode):  # a pipe, say, would make us wait forever
        raise CheckpointError(f"{path} is not a regular file")
    return status.st_size


def _check_size(path: Path, found: int, expected: int) -> None:
    if found != expected:
        raise CheckpointError(f"{path} has {found:,} bytes, {manifest.NAME} says {expected:,}")


def _read(path: Path) -> bytes:
    """By plain reads: a mapped file that is cut meanwhile would kill the process."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read ({error.strerror})") from error
