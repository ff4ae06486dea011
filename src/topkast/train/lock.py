"""One writer per run folder: a lock that goes with the process that holds it, however it ends."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

NAME = "lock"
_HEAD = "held by a topkast run: "
_held: set[int] = set()


class Lock:
    """The lock of a folder, held until `release` or the end of the process.

    The system forgets it when the process dies, so that a stale file is no obstacle. The file stays: removing
    it would let two processes lock two files of the same name.

    Raises:
        BlockingIOError: Another process, which is named, is writing to the folder.
    """

    def __init__(self, folder: Path) -> None:
        self._descriptor = os.open(folder / NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
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
