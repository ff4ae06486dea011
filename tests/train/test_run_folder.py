"""One run, one folder, one writer; and a record that a resumed run continues as if nothing had happened."""

from __future__ import annotations

import errno
import json
import math
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from topkast.store.files import Patience
from topkast.train import metrics
from topkast.train.environment import differences, environment
from topkast.train.folder import RunFolder, check_marker
from topkast.train.metrics import Metrics, read_metrics

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


# ---- the record -----------------------------------------------------------------------------------


def test_lines_are_whole_and_come_back(tmp_path: Path) -> None:
    record = Metrics(tmp_path / "m")
    record.append({"step": 1, "loss": 0.1 + 0.2, "name": "λ\n"})
    record.append({"step": 2, "loss": math.nan, "layers": {"a": [1.0, math.inf]}, "none": None})
    assert record.sync() == record.length == (tmp_path / "m").stat().st_size
    assert read_metrics(tmp_path / "m") == [
        {"step": 1, "loss": 0.1 + 0.2, "name": "λ\n"},
        {"step": 2, "loss": None, "layers": {"a": [1.0, None]}, "none": None},
    ]
    with pytest.raises(TypeError, match="not JSON serializable"):
        record.append({"t": torch.ones(1)})
    record.close()
    record.close()


@pytest.mark.parametrize("num_torn", [0, 1, 70_000, 200_000])
def test_a_torn_last_line_is_left_out_and_removed(num_torn: int, tmp_path: Path) -> None:
    path = tmp_path / "m"
    torn = b'{"step": "' + b"x" * num_torn
    path.write_bytes(b'{"step": 1}\n' + torn[:num_torn])
    assert read_metrics(path) == [{"step": 1}]
    record = Metrics(path)
    record.append({"step": 2})
    record.close()
    assert path.read_bytes() == b'{"step": 1}\n{"step": 2}\n'
    path.write_bytes(torn)
    assert read_metrics(path) == []
    record = Metrics(path)
    assert record.length == 0
    record.close()


def test_a_resumed_record_equals_an_uninterrupted_one(tmp_path: Path) -> None:
    def lines(record: Metrics, *steps: int) -> None:
        for step in steps:
            record.append({"step": step, "loss": 1 / step})

    whole = Metrics(tmp_path / "whole")
    lines(whole, 1, 2, 3, 4, 5)
    whole.close()
    killed = Metrics(tmp_path / "killed")
    lines(killed, 1, 2)
    length = killed.sync()  # a checkpoint
    lines(killed, 3, 4)
    killed.close()
    with open(tmp_path / "killed", "a") as file:
        file.write('{"step": 5, "lo')
    resumed = Metrics(tmp_path / "killed")
    resumed.cut(length)
    lines(resumed, 3, 4, 5)
    resumed.close()
    assert (tmp_path / "killed").read_bytes() == (tmp_path / "whole").read_bytes()


def test_an_altered_record_is_noticed(tmp_path: Path) -> None:
    record = Metrics(tmp_path / "m")
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


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b'{"a": 1}\n{"a"\n{"a": 2}\n', r"m, line 2: it is not JSON"),
        (b"[]\n", r"m, line 1: expected an object, got a list"),
        (b"\xff\n", r"m, line 1: it is not JSON"),
        (b"[" * 100_000 + b"\n", r"m, line 1: it is not JSON"),
    ],
    ids=["half", "list", "bytes", "deep"],
)
def test_a_bad_line_is_named(content: bytes, message: str, tmp_path: Path) -> None:
    (tmp_path / "m").write_bytes(content)
    with pytest.raises(ValueError, match=message):
        read_metrics(tmp_path / "m")


def test_a_full_disk_leaves_whole_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record = Metrics(tmp_path / "m", patience=Patience(attempts=2, pause=0.0))
    record.append({"step": 1})
    write, fails = os.pwrite, [True, True]

    def half(descriptor: int, content: bytes, place: int) -> int:
        if fails and len(content) < 5:
            fails.pop()
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(descriptor, content[:3], place)  # few bytes at a time, as a system may

    monkeypatch.setattr(metrics.os, "pwrite", half)
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
