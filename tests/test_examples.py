"""The examples run, small."""

from __future__ import annotations

import argparse
import importlib.util
from pathlib import Path
from typing import Any

import pytest

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"


def load(name: str) -> Any:
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.filterwarnings("ignore")
def test_bigger_than_memory_learns(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = tmp_path / "text.txt"
    text.write_bytes(b"the quick brown fox jumps over the lazy dog. " * 400)
    example = load("bigger_than_memory")
    sizes = {"width": 256, "depth": 2, "window": 32, "batch": 4, "steps": 30, "lr": 1e-3}
    options = {**sizes, "forward-sparsity": 0.95, "backward-sparsity": 0.9, "text": text}
    last = example.main(example.parse([f"--{name}={value}" for name, value in options.items()]))
    printed = capsys.readouterr().out
    assert "1,572,864 weights, 157,286 of them in B" in printed
    assert last < 4.5  # of 8 bits


def test_returned_over_time_counts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    target = tmp_path / "returned.svg"
    load("returned_over_time").main(argparse.Namespace(steps=20, plot=target))
    assert capsys.readouterr().out.count("of C has been in B") == 4
    assert target.stat().st_size > 1000


def test_compare_methods_runs_every_method_and_goes_on_where_it_was(
    tmp_path: Path, data_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    example = load("compare_methods")
    runs = tmp_path / "runs.jsonl"
    common = [f"--runs={runs}", f"--data={data_folder}", "--epochs=1", "--images=2560", "--seeds=1"]
    example.PAIRS = ((0.9, 0.8),)
    example.main(example.parse([*common, "--methods=static,RigL"]))
    example.main(example.parse(common))
    assert len(runs.read_text().splitlines()) == len(example.METHODS)
    capsys.readouterr()
    example.main(example.parse([*common, "--table"]))
    printed = capsys.readouterr().out
    for name in example.METHODS:
        assert f"| {name} |" in printed
