"""The command line at first contact: versions, mistakes, pipes, widths."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path

import pytest

from topkast.cli.compare import take_task
from topkast.cli.flags import in_flags
from topkast.cli.main import main
from topkast.text import duration, measured, narrow, stated


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_the_version_and_what_commands_there_are(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        main(["--version"])
    assert capsys.readouterr().out.startswith("topkast 0.")
    assert main([]) == 0
    assert "train a network, always sparse" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["trian"], "topkast: there is no command 'trian': did you mean train?"),
        (["train", "--stpes", "5"], "topkast train: there is no flag --stpes: did you mean --steps?"),
        (["eval", "run", "--chekpoint=x"], "topkast eval: there is no flag --chekpoint: did you mean"),
        (["train", "imagez"], "topkast train: there is no task 'imagez': did you mean images?"),
        (["export", "run", "--format", "onx"], "topkast export: --format has no 'onx': did you mean onnx?"),
        (["xyzzy"], "topkast: there is no command 'xyzzy': there are train, compare"),
        (["eval", "run", "other"], "topkast: unrecognized arguments: other"),
    ],
)
def test_a_misspelt_name_is_answered_with_the_nearest_in_one_line(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as raised:
        main(arguments)
    assert raised.value.code == 2
    error = capsys.readouterr().err
    assert error.startswith(message)
    assert error.count("\n") == 1


def test_a_list_may_go_on_behind_a_flag(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tune", "text", "dense", "--lr", "0.1", "static:0.9", "nonsense"]) == 2
    assert "nonsense" in capsys.readouterr().err  # behind a flag, and a contender all the same
    assert main(["tune", "text", "dense", "--lr", "0", "static:0.9"]) == 2
    assert "--lr must be above 0" in capsys.readouterr().err


def test_an_error_names_the_flag_only_if_it_was_typed(capsys: pytest.CaptureFixture[str]) -> None:
    Path("options.toml").write_text('[method]\nmethod = "topcast"\n')
    assert main(["train", "--config", "options.toml"]) == 2
    assert "options.toml: method.method must be one of 'topkast'" in capsys.readouterr().err
    assert main(["train", "--method", "topcast"]) == 2
    assert "topkast train: --method must be one of 'topkast'" in capsys.readouterr().err
    options = argparse.Namespace(t_end=5)
    assert in_flags("`t_end` and `begin`; method.t_end", options) == "--t-end and `begin`; --t-end"


def test_a_folder_of_images_leads_to_images(capsys: pytest.CaptureFixture[str]) -> None:
    Path("pictures/cat").mkdir(parents=True)
    Path("pictures/cat/a.png").write_bytes(b"\x89PNG\0\0")
    for place in ("pictures", "pictures/cat/a.png"):
        assert main(["train", "text", "--data", place]) == 2
        assert f"it has images: `topkast train images --data {place}`" in capsys.readouterr().err
    Path("pictures/cat/a.png").unlink()
    assert main(["train", "text", "--data", "pictures"]) == 2
    assert "images" not in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [["info"], ["train", "--help"], []])
def test_nobody_reading_on_is_no_error(arguments: list[str]) -> None:
    theirs, ours = os.pipe()
    os.close(theirs)
    command = [sys.executable, "-m", "topkast", *arguments]
    done = subprocess.run(command, stdout=ours, stderr=subprocess.PIPE, text=True, timeout=60)
    os.close(ours)
    assert done.stderr == ""
    assert done.returncode == (141 if arguments == ["info"] else 0)  # argparse minds no closed pipe


@pytest.mark.parametrize(
    ("words", "task", "expected"),
    [
        (["images", "dense"], None, ("images", ["dense"])),
        (["dense"], None, (None, ["dense"])),
        ([], "images", ("images", [])),
        (["images"], "images", ("images", [])),
    ],
)
def test_a_comparison_takes_its_task_first(
    words: list[str], task: str | None, expected: tuple[str | None, list[str]]
) -> None:
    options = argparse.Namespace(contenders=words, task=task)
    take_task(options)
    assert (options.task, options.contenders) == expected
    with pytest.raises(ValueError, match="--task is text, but images comes before"):
        take_task(argparse.Namespace(contenders=["images"], task="text"))


def test_tables_fit_eighty_columns() -> None:
    long = ["a contender whose name has many words and settings", *["1,234,567.89"] * 4, "x"]
    lines = narrow([["", *["a head of 20 letters"[:14]] * 4, "MB"], long, ["short", *["1"] * 5]])
    assert max(map(len, lines)) <= 80
    assert sum(line.endswith("x") for line in lines) == 1
    assert "settings" in " ".join(lines)
    assert narrow([["a", "b"], ["c", "d"]]) == ["a  b", "c  d"]


def test_the_summary_of_a_run_fits_eighty_columns(capsys: pytest.CaptureFixture[str]) -> None:
    sizes = ["--width=32", "--depth=1", "--heads=2", "--window=16", "--limit=9000", "--batch=2"]
    assert main(["train", "--steps", "2", *sizes, "--out", "run"]) == 0
    out = capsys.readouterr().out
    assert "dense, as many parameters" in out
    assert [line for line in out.splitlines() if len(line) > 80] == []


def test_digits_suit_the_quantity() -> None:
    assert (measured(15.0, "accuracy, %"), measured(1.23456, "bits per byte")) == ("15.0", "1.235")
    assert stated(15.0, "accuracy, %") == "accuracy: 15.0\N{NO-BREAK SPACE}%"
    times = {2e-9: "below 1 µs", 6.3e-7: "below 1 µs", 2.5e-5: "25 µs", 0.064: "64 ms", 4e9: "127 years"}
    for seconds, text in times.items():
        assert duration(seconds).replace("\N{NO-BREAK SPACE}", " ") == text
