"""`metrics.jsonl`: one JSON object per line, the record of a run."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from topkast.store.files import Patience, retried

NAME = "metrics.jsonl"


class Metrics:
    """Appends lines, whole ones only.

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


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """The records of a file, which may be that of a running or killed run: half a last line is left out.

    Raises:
        ValueError: A line is not a JSON object; it is named.
    """
    records: list[dict[str, Any]] = []
    lines = path.read_bytes().split(b"\n")
    for number, line in enumerate(lines[:-1], start=1):
        try:
            record = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise ValueError(f"{path}, line {number}: it is not JSON ({error})") from error
        if not isinstance(record, dict):
            raise ValueError(f"{path}, line {number}: expected an object, got a {type(record).__name__}")
        records.append(record)
    return records


def _finite(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, Mapping):
        return {key: _finite(item) for key, item in value.items()}
    return [_finite(item) for item in value] if isinstance(value, list | tuple) else value
