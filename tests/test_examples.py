"""The examples run: the short ones as they are, the long ones small."""

from __future__ import annotations

import argparse
import importlib.util
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

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


@pytest.mark.slow  # four short runs
def test_returned_over_time_counts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    target = tmp_path / "returned.svg"
    load("returned_over_time").main(argparse.Namespace(steps=20, plot=target))
    assert capsys.readouterr().out.count("of C has been in B") == 4
    assert target.stat().st_size > 1000


@pytest.mark.slow  # trains six networks
def test_two_clocks_are_timed_and_drawn(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    target = tmp_path / "clocks.svg"
    example = load("two_clocks")
    example.main(argparse.Namespace(steps=3, lr=4e-3, plot=target))
    assert capsys.readouterr().out.count("ms a step") == len(example.CLOCKS) + 1
    assert target.stat().st_size > 1000


def test_weight_sparse_cost_compares_equals(capsys: pytest.CaptureFixture[str]) -> None:
    example = load("weight_sparse_cost")
    options = ["--width=64", "--depth=1", "--batch=1", "--sparsity=0.9", "--steps=2"]
    medians = example.main(example.parse(options))
    assert list(medians) == ["topkast", "dense", "masks"]
    printed = capsys.readouterr().out.splitlines()
    used = [line.rpartition("; ")[2] for line in printed[1:]]
    assert used[0] == used[2] == "8,191 weights in use"
    assert used[1] == "81,920 weights in use"


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


# ---- six short ones, as a reader runs them --------------------------------------------------------------


def numbers(text: str, pattern: str) -> list[float]:
    return [float(found) for found in re.findall(pattern, text)]


def test_own_loop_learns_more_than_a_random_mask(
    one_thread: None, capsys: pytest.CaptureFixture[str]
) -> None:
    load("own_loop").main()
    learned, fixed = numbers(capsys.readouterr().out, r": ([\d.]+)%")
    assert learned > 90
    assert learned > fixed + 1


def test_rivals_lists_what_each_costs(one_thread: None, capsys: pytest.CaptureFixture[str]) -> None:
    example = load("rivals")
    example.main()
    rows = {line.split()[0]: numbers(line, r"([\d.]+)%") for line in capsys.readouterr().out.splitlines()[1:]}
    assert list(rows) == list(example.METHODS)
    assert rows["dense"][1] == 100
    assert rows["static"][1] < rows["Top-KAST"][1] < rows["pruning"][1] < 40
    assert all(accuracy > 85 for accuracy, _ in rows.values())


def test_hugging_face_learns_and_resumes(one_thread: None, capsys: pytest.CaptureFixture[str]) -> None:
    load("hugging_face").main()
    printed = capsys.readouterr().out
    first, last = numbers(printed, r"(?:loss|→) ([\d.]+)\b")[-2:]
    assert last < first - 1
    assert "resumed at step 30: equal to the last bit" in printed


@pytest.mark.filterwarnings("ignore:.isinstance.treespec, LeafSpec.. is deprecated:FutureWarning")
@pytest.mark.filterwarnings("ignore:.*does not have many workers")
def test_lightning_module_learns(one_thread: None, capsys: pytest.CaptureFixture[str]) -> None:
    load("lightning_module").main()
    printed = capsys.readouterr().out
    assert numbers(printed, r"([\d.]+)% of held-out")[0] > 90
    assert numbers(printed, r"changed by ([\d.]+)%")[0] > 0


def test_compiled_is_the_eager_run(one_thread: None, capsys: pytest.CaptureFixture[str]) -> None:
    torch._dynamo.reset()
    load("compiled").main("aot_eager")
    printed = capsys.readouterr().out
    eager, compiled = numbers(printed, r"(?:eager|compiled) ([\d.]+)")
    assert compiled == pytest.approx(eager, rel=1e-2)
    same, total = numbers(printed.replace(",", ""), r"\b(\d+)(?: of|\ elements)")
    assert same > 0.99 * total
    torch._dynamo.reset()


def test_deploy_gives_the_same_everywhere(one_thread: None, capsys: pytest.CaptureFixture[str]) -> None:
    load("deploy").main()
    printed = capsys.readouterr().out
    differences = numbers(printed, r"differs by ([\d.e+-]+)")
    assert len(differences) == 2
    assert max(differences) < 1e-4
    (compressed,), (dense,) = (
        numbers(printed.replace(",", ""), p) for p in (r"(\d+) bytes", r"bytes of (\d+)")
    )
    assert compressed < 0.25 * dense
