"""One run, one folder, one writer; and a record that a resumed run continues as if nothing had happened."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from topkast.train.folder import RunFolder, check_marker, differences, environment

# ---- the folder -----------------------------------------------------------------------------------


def test_a_new_folder_says_what_it_is_and_where(tmp_path: Path) -> None:
    with RunFolder.create(tmp_path / "a" / "run", {"config.toml": "x = 'λ'\n"}) as run:
        assert sorted(os.listdir(run.path)) == [
            "config.toml", "environment.json", "lock", "metrics.jsonl", "topkast-run.json"]  # fmt: skip
        assert (run.path / "config.toml").read_text() == "x = 'λ'\n"
        there = run.environment()
        assert there == environment()
        assert (there["torch"], there["threads"]) == (torch.__version__, torch.get_num_threads())
        assert {"topkast", "numpy", "python", "cpu", "isa", "commit", "safetensors"} <= there.keys()
    assert os.listdir(tmp_path) == ["a"]
    check_marker(run.path)
    with RunFolder.resume(run.path) as again:
        assert again.environment() == there


def test_an_empty_folder_will_do(tmp_path: Path) -> None:
    RunFolder.create(tmp_path).close()


def test_an_interrupted_creation_may_be_repeated(tmp_path: Path) -> None:
    RunFolder.create(tmp_path, {"config.toml": "old"}).close()
    (tmp_path / ".tmp-topkast-run.json-77").write_text("{")
    for name in ("topkast-run.json", "config.toml", "environment.json", "metrics.jsonl"):
        (tmp_path / name).unlink()
        with pytest.raises(ValueError, match=r"is not a run folder: it has no topkast-run.json"):
            RunFolder.resume(tmp_path)
        RunFolder.create(tmp_path, {"config.toml": "new"}).close()
        assert (tmp_path / "config.toml").read_text() == "new"
        assert not list(tmp_path.glob(".tmp-*"))
        (tmp_path / "topkast-run.json").unlink()


def mine(path: Path) -> None:
    RunFolder.create(path).close()


@pytest.mark.parametrize(
    ("prepare", "message"),
    [
        (mine, r"run holds a run already; resume it, or choose another folder"),
        (lambda p: (p.mkdir(), (p / "thesis.tex").touch()), r"run is not empty and not a run folder \('thesis.tex' is in it\)"),
        (lambda p: (p.mkdir(), (p / "lock").write_text("my notes")), r"not a run folder \('lock' is in it\)"),
        (lambda p: (p.mkdir(), (p / "config.toml").touch()), r"not a run folder \('config.toml' is in it\)"),
        (lambda p: p.touch(), r"run is a file; choose another place"),
        (lambda p: p.symlink_to("nowhere"), r"run is a file; choose another place"),
    ],
)  # fmt: skip
def test_what_is_there_is_left_alone(prepare: Callable[[Path], Any], message: str, tmp_path: Path) -> None:
    path = tmp_path / "run"
    prepare(path)
    before = sorted(os.listdir(path)) if path.is_dir() else None
    with pytest.raises(FileExistsError, match=message):
        RunFolder.create(path, {"config.toml": ""})
    assert (sorted(os.listdir(path)) if path.is_dir() else None) == before


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match=r"the run folder .*file/run cannot be created \(.*Not a directory"):
        RunFolder.create(tmp_path / "file" / "run")


@pytest.mark.parametrize(
    ("marker", "message"),
    [
        ("{", r"topkast-run.json cannot be read"),
        ("[]", r"topkast-run.json must hold a JSON object"),
        ("{}", r"topkast-run.json does not say that this is a training run of topkast"),
        ('{"format": 2, "kind": "a training run of topkast"}', r"is a run of format 2, this version of topkast reads 1; use the version"),
    ],
)  # fmt: skip
def test_a_folder_that_is_not_ours_is_not_resumed(marker: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "topkast-run.json").write_text(marker)
    with pytest.raises(ValueError, match=message):
        RunFolder.resume(tmp_path)
    assert os.listdir(tmp_path) == ["topkast-run.json"]
    with pytest.raises(ValueError, match=r"nowhere is not a folder, so not a run"):
        RunFolder.resume(tmp_path / "nowhere")


@pytest.mark.parametrize("name", ["../x", "/x", "", "a/../../x"])
def test_nothing_is_written_outside(name: str, tmp_path: Path) -> None:
    with (
        RunFolder.create(tmp_path) as run,
        pytest.raises(ValueError, match=r"a file of the run must lie in its folder"),
    ):
        run.write_text(name, "")


def test_files_are_replaced_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with RunFolder.create(tmp_path) as run:
        path = run.write_text("figures/a.svg", "old")

        def fail(*_: object) -> None:
            raise OSError(errno.ENOSPC, "full")

        monkeypatch.setattr(os, "fsync", fail)
        with pytest.raises(OSError, match="full"):
            run.write_text("figures/a.svg", "new")
        monkeypatch.undo()
        assert path.read_text() == "old"
        assert os.listdir(path.parent) == ["a.svg"]


def test_differences_of_environments() -> None:
    before = {"torch": "2.10", "threads": 2, "gone": 1}
    assert differences(before, {"torch": "2.13", "threads": 2, "new": 3}) == {
        "torch": ("2.10", "2.13"),
        "gone": (1, None),
        "new": (None, 3),
    }


# ---- the lock -------------------------------------------------------------------------------------

HOLDER = """
import sys, time
from pathlib import Path
from topkast.store.files import Lock
lock = Lock(Path(sys.argv[1]))
print("held", flush=True)
time.sleep(600)
"""


def test_two_processes_on_one_folder(tmp_path: Path) -> None:
    RunFolder.create(tmp_path).close()
    holder = subprocess.Popen([sys.executable, "-c", HOLDER, str(tmp_path)], stdout=subprocess.PIPE)
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        with pytest.raises(
            BlockingIOError, match=rf"written by another process \(process {holder.pid}\); wait for"
        ):
            RunFolder.resume(tmp_path)
        check_marker(tmp_path)  # a reader is no writer
    finally:
        holder.kill()
        holder.communicate()
    RunFolder.resume(tmp_path).close()  # what a dead process held is free
