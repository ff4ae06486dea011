"""Files on the disk: written whole or by whole lines, by one writer, with patience when a disk fails."""

from __future__ import annotations

import fcntl
import hashlib
import json
import math
import os
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, TypeVar

T = TypeVar("T")
# Whatever begins so was being written, or being removed, when a run was killed.
TEMPORARY = ".tmp-"
LOCK = "lock"
_HEAD = "held by a topkast run: "
_held: set[int] = set()


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


@contextmanager
def replaced(path: Path) -> Iterator[IO[bytes]]:
    """A file to write to that takes the place of `path` once it is whole and synced.

    A reader sees the old file or the new one. After an error the old one is as it was, and nothing else is
    left behind.
    """
    temporary = path.with_name(f"{TEMPORARY}{path.name}-{os.getpid()}")
    try:
        temporary.unlink(missing_ok=True)
        with open(temporary, "xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def replace(path: Path, content: bytes | Iterable[bytes | memoryview]) -> None:
    """Writes a file, perhaps in pieces, in the way of `replaced`."""
    with replaced(path) as file:
        for chunk in [content] if isinstance(content, bytes) else content:
            file.write(chunk)


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


class JsonLines:
    """A file of JSON objects, one a line, to which whole lines are appended.

    Args:
        path: The file; made if it is not there. A last line that a killed run left half-written is removed.
        patience: With a disk that fails.
    """

    def __init__(self, path: Path, *, patience: Patience | None = None) -> None:
        self._path = path
        self._patience = patience or Patience()
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            self._length = self._whole_lines()
            os.ftruncate(self._descriptor, self._length)
        except BaseException:
            os.close(self._descriptor)
            raise

    @property
    def length(self) -> int:
        """Bytes written."""
        return self._length

    def append(self, record: Mapping[str, Any]) -> None:
        """Adds a line. Numbers that are not finite become null: JSON has none.

        Raises:
            TypeError: The record has something that is not plain data.
            OSError: The disk is full or failing; the lines before are as they were.
        """
        line = (json.dumps(_finite(record), ensure_ascii=False, allow_nan=False) + "\n").encode()
        retried(lambda: self._write(line), self._patience)

    def sync(self) -> int:
        """Makes all lines last, and gives their length: what a checkpoint of now has to keep for `cut`."""
        retried(lambda: os.fsync(self._descriptor), self._patience)
        return self._length

    def cut(self, length: int) -> None:
        """Goes back to the length at a checkpoint: what came later will come again.

        Raises:
            ValueError: The file is not one that had this length.
        """
        is_end = length == 0 or (
            0 < length <= self._length and os.pread(self._descriptor, 1, length - 1) == b"\n"
        )
        if not is_end:
            raise ValueError(
                f"{self._path} has {self._length:,} bytes, but the checkpoint was taken at the end of a line "
                f"at {length:,}: the file was altered. Put it back, or resume from an earlier checkpoint"
            )
        os.ftruncate(self._descriptor, length)
        self._length = length

    def close(self) -> None:
        """Syncs and closes; may be called again."""
        if self._descriptor >= 0:
            descriptor, self._descriptor = self._descriptor, -1
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)

    def _write(self, line: bytes) -> None:
        written = 0
        try:
            while written < len(line):
                written += os.pwrite(self._descriptor, line[written:], self._length + written)
        except OSError:
            os.ftruncate(self._descriptor, self._length)
            raise
        self._length += len(line)

    def _whole_lines(self) -> int:
        """Where the last line ends, looked for from the end."""
        end = os.fstat(self._descriptor).st_size
        while end > 0:
            start = max(0, end - 65536)
            newline = os.pread(self._descriptor, end - start, start).rfind(b"\n")
            if newline >= 0:
                return start + newline + 1
            end = start
        return 0


def _finite(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, Mapping):
        return {key: _finite(item) for key, item in value.items()}
    return [_finite(item) for item in value] if isinstance(value, list | tuple) else value


class Lock:
    """The lock of a folder, held until `release` or the end of the process.

    The system forgets it when the process dies, so that a stale file is no obstacle. The file stays: removing
    it would let two processes lock two files of the same name.

    Raises:
        BlockingIOError: Another process, which is named, is writing to the folder.
    """

    def __init__(self, folder: Path) -> None:
        self._descriptor = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.ftruncate(self._descriptor, 0)
            os.pwrite(self._descriptor, f"{_HEAD}{os.getpid()}\n".encode(), 0)
        except BlockingIOError:
            holder = _holder(self._descriptor)
            os.close(self._descriptor)
            raise BlockingIOError(
                f"{folder} is being written by another process ({holder}); wait for it, stop it, "
                "or choose another folder"
            ) from None
        except BaseException:
            os.close(self._descriptor)
            raise
        _held.add(self._descriptor)

    def release(self) -> None:
        """Lets others have it; may be called again."""
        if self._descriptor in _held:
            _held.remove(self._descriptor)
            fcntl.flock(self._descriptor, fcntl.LOCK_UN)
            os.close(self._descriptor)
        self._descriptor = -1


def is_lock_file(path: Path) -> bool:
    """Whether a file was made by a lock, rather than being somebody's file of the same name."""
    try:
        with open(path, "rb") as file:
            content = file.read(len(_HEAD))
    except OSError:
        return False
    return content in (b"", _HEAD.encode())  # empty if it was killed right after creating it


def _holder(descriptor: int) -> str:
    text = os.pread(descriptor, 100, 0).decode(errors="replace").strip()
    return f"process {text.removeprefix(_HEAD)}" if text.startswith(_HEAD) else "its number is not known yet"


def _forget() -> None:
    """In a forked child, such as a data loader's worker: it must not hold the lock after its parent's end."""
    while _held:
        os.close(_held.pop())


os.register_at_fork(after_in_child=_forget)


def check_target(path: Path, option: str) -> Path:
    """Raises OSError if a file cannot be there: better before the work than after it."""
    if path.is_dir():
        raise IsADirectoryError(f"{option} takes a file, {path} is a folder")
    if not path.absolute().parent.is_dir():
        raise FileNotFoundError(
            f"{option}: the folder {path.absolute().parent} does not exist; create it first"
        )
    return path
