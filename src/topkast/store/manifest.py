"""The manifest of a checkpoint, and the checks of its files before anything in them is believed.

The manifest says what belongs to the checkpoint, with the size and SHA-256 of every file. It is written last,
so that a folder with a valid manifest is complete. It carries a digest of itself, and a reader takes it only
in the one form that `Manifest.dump` gives it: nobody can alter a byte of it unnoticed.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import stat
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

# Raised when a key changes its meaning or goes.
FORMAT = 1
MANIFEST = "manifest.json"
MAX_SIZE = 1 << 16
TENSORS, STATE = "tensors.safetensors", "state.json"
_FILES = {TENSORS, STATE}


class CheckpointError(ValueError):
    """A checkpoint is damaged, incomplete, or not one. The message begins with the file."""


@dataclass(frozen=True)
class Manifest:
    """What a checkpoint consists of.

    Attributes:
        step: Steps taken.
        score: How good the run was then, larger is better, or None.
        files: Name → {"size": bytes, "sha256": digest}.
    """

    step: int
    score: float | None
    files: dict[str, dict[str, Any]]

    def dump(self) -> bytes:
        """The file."""
        content = {"format": FORMAT, **asdict(self)}
        return _dump({**content, "digest": hashlib.sha256(_dump(content)).hexdigest()})


def parse(content: bytes) -> Manifest:
    """The manifest that `dump` gave.

    Raises:
        ValueError: It is not one, of another format, or altered.
    """
    try:
        fields = json.loads(content)
        version = fields["format"]
        manifest = Manifest(fields["step"], fields["score"], fields["files"])
        is_sound = _is_plausible(manifest) and (version != FORMAT or manifest.dump() == content)
    except (ValueError, RecursionError, KeyError, TypeError, AttributeError):
        version, manifest, is_sound = None, None, False
    if manifest is None or not is_sound:
        raise ValueError("it is not a manifest, or it was altered")
    if version != FORMAT:
        raise ValueError(f"it has format {version}, this version of topkast reads {FORMAT}")
    return manifest


def _is_plausible(manifest: Manifest) -> bool:
    score = manifest.score
    has_score = score is None or (type(score) is float and math.isfinite(score))
    return (
        has_score
        and type(manifest.step) is int
        and all(type(file["size"]) is int and type(file["sha256"]) is str for file in manifest.files.values())
    )


def _dump(content: dict[str, Any]) -> bytes:
    return (json.dumps(content, indent=1, allow_nan=False) + "\n").encode()


def read_manifest(folder: Path, step: int) -> Manifest:
    """The manifest of a checkpoint, which is checked, and that its files are there and no others.

    Raises:
        CheckpointError: Something is wrong; the file is named.
    """
    path = folder / MANIFEST
    try:
        names = set(os.listdir(folder))
    except OSError as error:
        raise CheckpointError(f"{folder} cannot be read ({error.strerror})") from error
    if MANIFEST not in names:
        raise CheckpointError(f"{path} is missing: the checkpoint is incomplete")
    size = _size(path)
    if size > MAX_SIZE:
        raise CheckpointError(f"{path} has {size:,} bytes, more than the {MAX_SIZE:,} it may have")
    text = _read(path)
    try:
        content = parse(text)
    except ValueError as error:
        raise CheckpointError(f"{path}: {error}") from error
    if content.step != step:
        raise CheckpointError(f"{path} is that of another checkpoint (step {content.step})")
    if content.files.keys() != _FILES:  # before any of them is opened: a name may lead anywhere
        raise CheckpointError(f"{path} must list {' and '.join(sorted(_FILES))}, and nothing else")
    for name in sorted(_FILES - names):
        raise CheckpointError(f"{folder / name} is missing")
    for name in sorted(names - _FILES - {MANIFEST}):
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
        raise CheckpointError(f"{path} was altered: its SHA-256 is not the one in {MANIFEST}")
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
        raise CheckpointError(f"{path} has {found:,} bytes, {MANIFEST} says {expected:,}")


def _read(path: Path) -> bytes:
    """By plain reads: a mapped file that is cut meanwhile would kill the process."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read ({error.strerror})") from error
