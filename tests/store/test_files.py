"""Files are there whole or not at all, and a folder has one writer."""

from __future__ import annotations

import errno
import json
import math
import os
from pathlib import Path

import pytest
import torch

from store.raw_record import read_lines
from topkast.store import files
from topkast.store.files import JsonLines, Lock, Patience, replace, replaced


def test_a_file_is_replaced_when_it_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "a"
    with replaced(path) as file:
        file.write(b"old")
        assert not path.exists()
    assert path.read_bytes() == b"old"
    replace(path, (piece for piece in (b"n", memoryview(b"ew"))))
    assert path.read_bytes() == b"new"
    assert os.listdir(tmp_path) == ["a"]


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_after_an_error_the_old_file_is_there_and_nothing_else(
    error: type[BaseException], tmp_path: Path
) -> None:
    path = tmp_path / "a"
    replace(path, b"old")

    def write_half() -> None:
        with replaced(path) as file:
            file.write(b"ne")
            raise error

    with pytest.raises(error):
        write_half()
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["a"]


def test_the_same_process_cannot_have_it_twice(tmp_path: Path) -> None:
    first = Lock(tmp_path)
    with pytest.raises(BlockingIOError, match=rf"process {os.getpid()}"):
        Lock(tmp_path)
    first.release()
    first.release()
    Lock(tmp_path).release()


@pytest.mark.filterwarnings("ignore:This process")
def test_a_forked_worker_does_not_keep_the_lock(tmp_path: Path) -> None:
    held = Lock(tmp_path)
    ready, done = os.pipe(), os.pipe()
    worker = os.fork()
    if worker == 0:
        os.close(done[1])
        os.write(ready[1], b"x")
        os.read(done[0], 1)  # until the parent is done
        os._exit(0)
    try:
        os.read(ready[0], 1)
        os.close(held._descriptor)  # as the end of the parent would
        files._held.discard(held._descriptor)
        Lock(tmp_path).release()
    finally:
        for descriptor in (*ready, *done):
            os.close(descriptor)
        os.waitpid(worker, 0)


# ---- lines of JSON -----------------------------------------------------------------------------------


def test_lines_are_whole_and_come_back(tmp_path: Path) -> None:
    record = JsonLines(tmp_path / "m")
    record.append({"step": 1, "loss": 0.1 + 0.2, "name": "λ\n"})
    record.append({"step": 2, "loss": math.nan, "layers": {"a": [1.0, math.inf]}, "none": None})
    assert record.sync() == record.length == (tmp_path / "m").stat().st_size
    assert read_lines(tmp_path / "m") == [
        {"step": 1, "loss": 0.1 + 0.2, "name": "λ\n"},
        {"step": 2, "loss": None, "layers": {"a": [1.0, None]}, "none": None},
    ]
    with pytest.raises(TypeError, match="not JSON serializable"):
        record.append({"t": torch.ones(1)})
    record.close()
    record.close()


@pytest.mark.parametrize("num_torn", [0, 1, 70_000, 200_000])
def test_a_torn_last_line_is_removed(num_torn: int, tmp_path: Path) -> None:
    path = tmp_path / "m"
    torn = b'{"step": "' + b"x" * num_torn
    path.write_bytes(b'{"step": 1}\n' + torn[:num_torn])
    record = JsonLines(path)
    record.append({"step": 2})
    record.close()
    assert path.read_bytes() == b'{"step": 1}\n{"step": 2}\n'
    path.write_bytes(torn)
    record = JsonLines(path)
    assert record.length == 0
    record.close()


def test_a_resumed_record_equals_an_uninterrupted_one(tmp_path: Path) -> None:
    def lines(record: JsonLines, *steps: int) -> None:
        for step in steps:
            record.append({"step": step, "loss": 1 / step})

    whole = JsonLines(tmp_path / "whole")
    lines(whole, 1, 2, 3, 4, 5)
    whole.close()
    killed = JsonLines(tmp_path / "killed")
    lines(killed, 1, 2)
    length = killed.sync()  # a checkpoint
    lines(killed, 3, 4)
    killed.close()
    with open(tmp_path / "killed", "a") as file:
        file.write('{"step": 5, "lo')
    resumed = JsonLines(tmp_path / "killed")
    resumed.cut(length)
    lines(resumed, 3, 4, 5)
    resumed.close()
    assert (tmp_path / "killed").read_bytes() == (tmp_path / "whole").read_bytes()


def test_an_altered_record_is_noticed(tmp_path: Path) -> None:
    record = JsonLines(tmp_path / "m")
    record.append({"step": 1})
    for length in (5, 13, -1):
        with pytest.raises(
            ValueError, match=r"m has 12 bytes, but the checkpoint was taken at the end of a line at"
        ):
            record.cut(length)
    assert record.length == 12
    record.cut(12)
    record.cut(0)
    record.close()
    assert (tmp_path / "m").read_bytes() == b""


def test_a_full_disk_leaves_whole_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record = JsonLines(tmp_path / "m", patience=Patience(attempts=2, pause=0.0))
    record.append({"step": 1})
    write, fails = os.pwrite, [True, True]

    def half(descriptor: int, content: bytes, place: int) -> int:
        if fails and len(content) < 5:
            fails.pop()
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(descriptor, content[:3], place)  # few bytes at a time, as a system may

    monkeypatch.setattr(files.os, "pwrite", half)
    with pytest.raises(OSError, match="No space left"):
        record.append({"step": 2})
    assert (tmp_path / "m").read_bytes() == b'{"step": 1}\n'
    fails.append(True)
    record.append({"step": 3})  # the second try works
    record.close()
    assert [json.loads(line) for line in (tmp_path / "m").read_text().splitlines()] == [
        {"step": 1},
        {"step": 3},
    ]
