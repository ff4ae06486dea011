from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from topkast.cli.main import main


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs go into folders of the working directory."""
    monkeypatch.chdir(tmp_path)


def test_train_images_prints_quality_and_how_the_mask_moved(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "images", "--steps", "100"]) == 0
    out = capsys.readouterr().out
    assert "run folder: runs/images-topkast-1" in out
    assert re.search(r"^ +100 +\d+\.\d+ +\d+\.\d+ +\d+\.\d+% +\d+\.\d+%", out, re.MULTILINE)
    names = ("Top-KAST 90/80 %", "fixed random mask 90 %", "dense", "dense, as many parameters")
    row = rf"^({'|'.join(names)}) +(\d+\.\d+) +(?:\d+\.\d+|not yet) +[\d,]+ +\d+\.\d +\d+\.\d+$"
    rows = dict(re.findall(row, out, re.MULTILINE))
    assert set(rows) == set(names)
    assert float(rows["Top-KAST 90/80 %"]) > 30  # ten classes: far above chance


def test_train_text_runs_on_what_comes_with_python(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "--steps", "3", "--reference", "none", "--engine", "csr", "--out", "run"]) == 0
    assert "Top-KAST 90/80 %: 3 steps" in capsys.readouterr().out
    assert 'engine = "csr"' in Path("run/config.toml").read_text()


def test_a_dry_run_trains_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "images", "--dry-run", "--method", "rigl"]) == 0
    out = capsys.readouterr().out
    assert "scikit-learn's digits: 1,438 for training, 359 others held out" in out
    assert re.search(r"parameters in use: [\d,]+ of 50,826", out)
    assert "FLOPs of a step" in out
    assert main(["train", "images", "--dry-run", "--method", "dense"]) == 0
    assert "sets: 0.8 MB (0.8 MB dense)" in capsys.readouterr().out
    assert not Path("runs").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["train", "--forward-sparsity", "1.5"],
            r"topkast train: --forward-sparsity must be in \[0, 1\), got 1.5",
        ),
        (["train", "--steps", "0"], r"topkast train: --steps must be at least 1, got 0"),
        (["train", "--steps", "four"], r"topkast train: --steps must be a whole number, got 'four'"),
        (["train", "--reference", "dens"], r"topkast train: --reference must be one of 'dense'"),
        (["train", "images", "--engine", "gpu"], r"topkast train: --engine must be one of"),
        (
            ["train", "--method", "rigl", "--steps", "10"],
            r"topkast train: `t_end` must be after the first update",
        ),
        (["train", "--data", "nowhere.txt"], r"topkast train: nowhere.txt does not exist"),
        (["train", "images", "--data", "nowhere"], r"topkast train: nowhere is not a folder"),
        (["train", "--resume", "nowhere"], r"topkast train: nowhere is not a folder, so not a run"),
        (
            ["train", "--resume", ".", "--lr", "5"],
            r"topkast train: --resume takes everything from the run",
        ),
        (["train", "--config", "nowhere.toml"], r"topkast train: .*nowhere.toml"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    errors = capsys.readouterr().err
    assert re.match(message, errors)
    assert errors.count("\n") == 1


def test_the_module_runs_as_a_program() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "topkast", "--help"], capture_output=True, text=True, check=True
    )
    assert "COMMAND" in done.stdout
