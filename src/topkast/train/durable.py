"""Files that are on the disk when we say so, and a little patience with a disk that fails."""

from __future__ import annotations

import hashlib
import os
import shutil
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")
# Whatever begins so was being written, or being removed, when a run was killed.
TEMPORARY = ".tmp-"


@dataclass(frozen=True)
class Patience:
    """How often a failing write is tried, and how many seconds pass before the next try."""

    attempts: int = 3
    pause: float = 0.5


def retried(action: Callable[[], T], patience: Patience) -> T:
    """Does something that may raise OSError; the last error is the caller's."""
    for _ in range(patience.attempts - 1):
        try:
            return action()
        except OSError:
            time.sleep(patience.pause)
    return action()


def write_new(path: Path, chunks: Iterable[bytes | memoryview]) -> dict[str, int | str]:
    """Writes and syncs a file that was not there; gives its size and SHA-256.

    The digest is that of what was to be written, so that a disk that wrote something else is found out.
    """
    digest, size = hashlib.sha256(), 0
    with open(path, "xb") as file:
        for chunk in chunks:
            file.write(chunk)
            digest.update(chunk)
            size += len(chunk)
        file.flush()
        os.fsync(file.fileno())
    return {"size": size, "sha256": digest.hexdigest()}


def replace(path: Path, content: bytes | Iterable[bytes | memoryview]) -> None:
    """Writes a file, perhaps in pieces, whole or not at all: a reader sees the old one or the new one."""
    temporary = path.with_name(f"{TEMPORARY}{path.name}-{os.getpid()}")
    try:
        temporary.unlink(missing_ok=True)
        write_new(temporary, [content] if isinstance(content, bytes) else content)
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def sync_folder(path: Path) -> None:
    """Makes names that were created, renamed or removed in a folder last."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def remove_folder(path: Path) -> None:
    """Removes a folder: at once under its own name, its files as far as that goes.

    What cannot be removed now is a temporary folder that the next writer removes.
    """
    gone = path.with_name(f"{TEMPORARY}gone-{path.name}-{os.getpid()}")
    shutil.rmtree(gone, ignore_errors=True)
    os.rename(path, gone)
    shutil.rmtree(gone, ignore_errors=True)


def remove_temporary(folder: Path) -> None:
    """Removes what killed runs left half-written in a folder."""
    for path in folder.glob(f"{TEMPORARY}*"):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)
