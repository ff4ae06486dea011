from __future__ import annotations

import re
import subprocess
import sys

import pytest

from topkast.cli.main import main


def test_train_images_prints_quality_densities_and_how_the_mask_moved(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["train", "images", "--steps", "100"]) == 0
    out = capsys.readouterr().out
    assert "scikit-learn's digits: 1,438 for training, 359 others held out" in out
    assert "10.00 %" in out
    assert re.search(r"of the initial C +\d+\.\d+% has been in B", out)
    rows = dict(
        re.findall(r"^(Top-KAST|fixed random mask|dense) +(\d+\.\d+) +[\d,]+ +\d+\.\d$", out, re.MULTILINE)
    )
    assert set(rows) == {"Top-KAST", "fixed random mask", "dense"}
    assert float(rows["Top-KAST"]) > 30  # ten classes: far above chance


def test_train_text_runs_on_what_comes_with_python(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "--steps", "3", "--reference", "none", "--engine", "csr"]) == 0
    out = capsys.readouterr().out
    assert "bytes of the standard library's sources: 4,000,000 for training" in out
    assert "left dense: position" in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["train", "--forward-sparsity", "1.5"],
            r"topkast train: `forward_sparsity` must be in \[0, 1\), got 1.5",
        ),
        (["train", "--steps", "0"], r"topkast train: --steps must be at least 1, got 0"),
        (
            ["train", "--reference", "dens"],
            r"topkast train: --reference takes static, dense or none, got 'dens'",
        ),
        (["train", "images", "--engine", "gpu"], r"topkast train: `engine` must be one of 'auto'"),
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
