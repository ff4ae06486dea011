"""Trackers: what others' programs are given of a run. wandb is not installed where tests run: a stand-in is."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from store.raw_record import read_lines
from topkast.cli.main import main
from topkast.train import job
from topkast.train.config import Config
from topkast.train.display import Quiet
from topkast.train.options import rules
from topkast.train.sections import SECTIONS
from topkast.train.trackers import TRACKERS, names

pytestmark = pytest.mark.usefixtures("one_thread")


class FakeRun:
    """What `wandb.init` gives: keeps what it is told."""

    id = "abc123"

    def __init__(self, **settings: Any) -> None:
        self.settings, self.logged, self.is_finished = settings, {}, False

    def log(self, scalars: dict[str, float], step: int) -> None:
        self.logged[step] = scalars

    def finish(self) -> None:
        self.is_finished = True


@pytest.fixture
def wandb_runs(monkeypatch: pytest.MonkeyPatch) -> list[FakeRun]:
    runs: list[FakeRun] = []

    def init(**settings: Any) -> FakeRun:
        runs.append(FakeRun(**settings))
        return runs[-1]

    monkeypatch.setitem(sys.modules, "wandb", SimpleNamespace(init=init))  # pyright: ignore[reportArgumentType]
    return runs


def small(folder: Path, **run: Any) -> Config:
    (folder / "text.txt").write_bytes(b"the quick brown fox jumps over the lazy dog. " * 200)
    return Config().with_values(
        {
            "data": {"data": str(folder / "text.txt")},
            "model": {"width": 16, "depth": 1, "heads": 2, "window": 8},
            "train": {"steps": 8, "batch": 2, "threads": 1},
            "run": {"reference": ["dense"], "evaluate_every": 4, **run},
        }
    )


def test_wandb_is_given_what_the_record_says(tmp_path: Path, wandb_runs: list[FakeRun]) -> None:
    job.start(small(tmp_path, track=["wandb"]), tmp_path / "run", Quiet())
    (run,) = wandb_runs  # references are no runs of their own
    assert run.is_finished
    assert (run.settings["dir"], run.settings["name"]) == (str(tmp_path / "run"), "run")
    assert run.settings["config"]["train"]["steps"] == 8
    lines = {
        line["step"]: line
        for line in read_lines(tmp_path / "run/metrics.jsonl")
        if "quality" in line and "step" in line
    }
    assert list(run.logged) == [4, 8]
    for step, scalars in run.logged.items():
        assert scalars["train/loss"] == lines[step]["loss"]
        assert scalars["eval/bits_per_byte"] == lines[step]["quality"]
        assert scalars["topkast/head/changed"] == lines[step]["layers"]["head"]["changed"]


def test_a_resumed_run_goes_on_in_the_same_run_of_wandb(tmp_path: Path, wandb_runs: list[FakeRun]) -> None:
    job.start(small(tmp_path, track=["wandb"]), tmp_path / "run", Quiet())
    assert "resume" not in wandb_runs[0].settings
    job.resume(tmp_path / "run", Quiet(), changes={"train": {"steps": 12}})
    assert {"id": "abc123", "resume": "allow"}.items() <= wandb_runs[1].settings.items()
    assert list(wandb_runs[1].logged) == [12]


def test_what_is_missing_is_said_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)  # pyright: ignore[reportArgumentType]
    assert main(["train", "--track", "wandb", "--out", str(tmp_path / "run")]) == 2
    assert "--track wandb needs wandb, which is not installed: pip install wandb" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()
    assert main(["train", "--track", "wanbd"]) == 2
    assert "--track must be one of 'wandb'" in capsys.readouterr().err


def test_one_option_for_all_trackers_and_the_old_one_works() -> None:
    assert tuple(rules(SECTIONS["run"])["track"].choices) == tuple(TRACKERS)
    told = {"track": ["wandb"], "tensorboard": True}
    assert names(Config().with_values({"run": told})) == ["wandb", "tensorboard"]
    assert names(Config().with_values({"run": {"track": ["tensorboard"], "tensorboard": True}})) == [
        "tensorboard"
    ]
    assert names(Config()) == []
