"""Files are there whole or not at all, and a folder has one writer."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from topkast.store import files
from topkast.store.files import Lock, replace, replaced


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
