"""Comparisons: several runs, a process each, through interruptions to one page."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from topkast.cli.main import main
from topkast.reproduce import contest
from topkast.reproduce.contest import contender
from topkast.reproduce.recipes import Recipe
from topkast.train.config import Config
from topkast.train.session import Stopped

SMALL = ["--width=16", "--depth=1", "--heads=2", "--window=8", "--threads=1", "--batch=2", "--engine=masked"]


def images() -> Config:
    return Config().with_values(
        {"data": {"task": "images"}, "train": {"steps": 4}, "model": {"hidden": [16]}}
    )


def test_contenders_are_named_as_on_the_command_line() -> None:
    assert contender("dense").recipe == Recipe(method="dense")
    assert contender("rigl:0.9").recipe == Recipe(method="rigl", forward=0.9)
    assert contender("topkast:0.95/0.9").recipe == Recipe(method="topkast", forward=0.95, backward=0.9)
    assert contender("topkast:0.95/0.9").label == "topkast-0.95-0.9"


@pytest.mark.parametrize(
    "text", ["", "topkst:0.9", "topkast:", "topkast:0.9/0.8/0.7", "topkast:much", "rigl:0.9,"]
)
def test_contenders_that_are_none(text: str) -> None:
    with pytest.raises(ValueError, match="must be"):
        contender(text)


def test_all_runs_are_checked_before_any_is_made() -> None:
    both = ["dense", "static:0.9"]
    assert list(contest.plan(images(), both, [0, 1])) == [
        "dense-seed0", "static-0.9-seed0", "dense-seed1", "static-0.9-seed1",
    ]  # fmt: skip
    for contenders, seeds, message in [
        ([both[0], both[0]], [0], "once only"),
        (both, [1, 1], "once only"),
        (both[:1], [0], "at least two runs, got 1"),
        (
            [both[0], "static:1.5"],
            [0],
            r"static-1.5-seed0: `forward_sparsity` must be in \[0, 1\)",
        ),
        ([both[0], "static:0.9/0.8"], [0], "static-0.9-0.8-seed0: "),
    ]:
        with pytest.raises(ValueError, match=message):
            contest.plan(images(), contenders, seeds)


def test_folders_that_are_not_free_or_not_ours(tmp_path: Path) -> None:
    configs = contest.plan(images(), ["dense", "static:0.9"], [0])
    contest.create(tmp_path / "a", configs)
    assert contest.names(tmp_path / "a") == list(configs)
    with pytest.raises(FileExistsError, match="holds a comparison already: go on with --resume"):
        contest.create(tmp_path / "a", configs)
    with pytest.raises(FileExistsError, match="is not an empty folder"):
        contest.create(tmp_path, configs)
    with pytest.raises(ValueError, match="is not the folder of a comparison"):
        contest.names(tmp_path)
    for hostile in (
        {"format": 1, "runs": ["../up"]},
        {"format": 2, "runs": []},
        [],
        {"format": 1, "runs": [1]},
    ):
        (tmp_path / "a" / contest.MARKER).write_text(json.dumps(hostile))
        with pytest.raises(ValueError, match="is not the folder of a comparison"):
            contest.names(tmp_path / "a")


def test_a_run_that_fails_is_named(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    configs = contest.plan(images(), ["dense", "static:0.9"], [0])
    contest.create(tmp_path / "a", configs)
    (tmp_path / "a" / "configs" / "dense-seed0.toml").write_text("[train]\nsteps = -1\n")
    with pytest.raises(
        Stopped, match=r"dense-seed0 ended with exit code 2; go on with: topkast compare --resume"
    ):
        contest.go(tmp_path / "a", quiet=True)
    assert "train.steps must be at least 1, got -1" in capfd.readouterr().err


@pytest.mark.slow  # several processes; `reproduce` has a quick one like it
def test_a_comparison_that_was_interrupted_goes_on_to_its_page(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    text = tmp_path / "text.txt"
    text.write_bytes(b"the quick brown fox jumps over the lazy dog. " * 200)
    command = ["compare", "dense", "static:0.5", *SMALL, "--data", str(text), "--out", str(out), "--quiet"]
    command += ["--steps", "1000000"]
    command += ["--checkpoint-every", "10"]
    process = subprocess.Popen([sys.executable, "-m", "topkast", *command], stdout=subprocess.PIPE, text=True)
    while not list(out.glob("dense-seed0/checkpoints/step-*/manifest.json")):
        assert process.poll() is None
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    printed, _ = process.communicate(timeout=60)
    assert process.returncode == 143
    assert f"topkast compare --resume {out}" in printed
    assert not (out / "static-0.5-seed0").exists()
    # To its end would take long: bring that nearer.
    steps = max(int(path.parent.name[5:]) for path in out.glob("*/checkpoints/step-*/manifest.json"))
    for path, nearer in [
        (out / "dense-seed0" / "config.toml", steps + 5),
        (out / "configs/static-0.5-seed0.toml", 9),
    ]:
        path.write_text(path.read_text().replace("steps = 1000000", f"steps = {nearer}"))
    assert main(["compare", "--resume", str(out), "--quiet"]) == 0
    shown = capsys.readouterr().out
    assert "\ndense " in shown
    assert "\nfixed random mask 50 % " in shown
    assert max(len(line) for line in shown.splitlines() if not line.startswith("report: ")) <= 80
    assert (out / "comparison.html").is_file()
    assert main(["compare", "--resume", str(out), "dense"]) == 2
