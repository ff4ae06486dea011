"""The examples run, small."""

from __future__ import annotations

import argparse
import importlib.util
import subprocess
import sys
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


@pytest.mark.slow  # two more processes; that only gradients are sent is tested in tests/distributed too
def test_ddp_traffic_is_that_of_the_formulas(capfd: pytest.CaptureFixture[str]) -> None:
    subprocess.run([sys.executable, EXAMPLES / "ddp_traffic.py", "--model", "tiny"], check=True)
    lines = [line for line in capfd.readouterr().out.splitlines() if line.count("  ") > 3]
    rows = {line[:28].strip(): [float(n.replace(",", "")) for n in line[28:].split()] for line in lines[1:]}
    dense, sparse, sent, rigl = rows.values()
    assert sparse[0] < 0.6 * dense[0], "much of so small a network is dense"
    assert sparse[1] == 0 < sent[1]
    for gradients, _, written, _ in (dense, sparse):
        assert written == pytest.approx(gradients, rel=0.1, abs=1)  # 2·(W − 1)/W is 1; and a few headers
    assert sent[2] > sparse[2] + 0.4 * sent[1]
    assert rigl[2] > rigl[0]


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
