"""A toy of each kind, added the way CONTRIBUTING says: its own code, and one line in its list."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import topkast
from topkast.cli.main import main
from topkast.core.moment import Moment
from topkast.core.sets import Sets
from topkast.cost.flops import dense_flops
from topkast.data.datasets import DATA_SETS, DataSet, find_dataset
from topkast.kernels.auto import NAMES
from topkast.kernels.engines import ENGINES
from topkast.kernels.masked import MaskedEngine
from topkast.methods import Method
from topkast.methods.named import METHODS, Named
from topkast.nn import registry
from topkast.nn.layers import Linear
from topkast.report import read_run
from topkast.reproduce.contest import contender
from topkast.reproduce.recipes import other
from topkast.reproduce.scales import TINY


@dataclass(frozen=True)
class FirstElements(Method):
    """A = B = the first elements, moved on by one at every step."""

    def is_due(self, step: int) -> bool:
        return True

    def choose(self, moment: Moment) -> Sets:
        count = moment.counts.forward
        first = min(moment.step, moment.numel - count)
        return Sets.of(torch.arange(first, first + count))


def train(model: nn.Module, method: Method, **options: Any) -> topkast.Handle:
    sparse = topkast.sparsify(model, method, **options)
    optimizer = sparse.attach(torch.optim.SGD(model.parameters(), lr=0.1))
    for _ in range(3):
        model(torch.randn(4, 8)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    return sparse


def test_a_method_needs_two_answers() -> None:
    sparse = train(nn.Sequential(nn.Linear(8, 12)), FirstElements(0.5, 0.5))
    assert sparse.weights["0"].indices.tolist() == list(range(3, 51))


def test_a_named_method_is_one_entry(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every command that takes a method takes it, checks what is said of it, and shows its title."""
    toy = Named(lambda c: FirstElements(c.forward(), c.forward()), "First", ("forward_sparsity",))
    monkeypatch.setitem(METHODS, "first", toy)  # pyright: ignore[reportArgumentType]
    text = tmp_path / "text.txt"
    text.write_bytes(b"the quick brown fox jumps over the lazy dog. " * 200)
    small = ["--width=16", "--depth=1", "--heads=2", "--window=8", "--batch=2", "--steps=2", "--threads=1"]
    chosen = ["--method", "first", "--forward-sparsity", "0.5"]
    out = tmp_path / "run"
    assert main(["train", *small, *chosen, "--data", str(text), "--out", str(out), "--no-report"]) == 0
    record = read_run(out)
    assert record.name == "First 50 %"
    assert list(record.references) == ["fixed random mask 50 %", "dense", "dense, as many parameters"]
    assert main(["train", *chosen, "--t-end", "9", "--data", str(text), "--dry-run"]) == 2
    assert "first has no --t-end (got 9): it takes --forward-sparsity" in capsys.readouterr().err
    assert main(["plan", "mlp", *chosen]) == 0
    assert "FirstElements 50/50 % sparse" in capsys.readouterr().out
    assert contender("first:0.5").label == "first-0.5"
    recipe = other("images", "first", 0.5)
    assert TINY.config(recipe, 0, is_forecast=True).method.method == "first"


class Counting(MaskedEngine):
    """Counts its forward products."""

    name, code, preference = "counting", 4, 9
    count = 0

    def linear(self, *arguments: Any, **options: Any) -> Tensor:
        type(self).count += 1
        return super().linear(*arguments, **options)


def test_an_engine_is_one_entry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ENGINES, "counting", Counting())
    train(nn.Sequential(nn.Linear(8, 12)), topkast.TopKAST(0.8, 0.5), engine="counting")
    assert Counting.count >= 3


def test_codes_of_engines_are_those_of_all_checkpoints_so_far() -> None:
    assert NAMES == ("undecided", "masked", "csr", "native")
    assert [ENGINES[name].code for name in NAMES[1:]] == [1, 2, 3]


class Doubled(nn.Linear):
    """A layer with a forward of its own."""

    def forward(self, input: Tensor) -> Tensor:
        return 2 * super().forward(input)


class SparseDoubled(Linear):
    """Its sparse counterpart."""

    label = "Doubled"
    dense_type = Doubled

    def forward(self, input: Tensor) -> Tensor:
        return 2 * super().forward(input)


def test_a_layer_is_one_entry(monkeypatch: pytest.MonkeyPatch) -> None:
    model = nn.Sequential(Doubled(8, 12), nn.Linear(12, 8))
    assert "0" in topkast.sparsify(model, topkast.TopKAST(0.8, 0.5)).left_dense
    others = dict(registry._COUNTERPARTS)
    monkeypatch.setattr(registry, "_COUNTERPARTS", {Doubled: SparseDoubled, **others})
    model = nn.Sequential(Doubled(8, 12))
    sparse = topkast.sparsify(model, topkast.TopKAST(0.8, 0.5))
    x = torch.randn(4, 8)
    layer = sparse.layers["0"]
    torch.testing.assert_close(model(x), 2 * (x @ layer.alpha().T + layer.bias))


class Plain(nn.Module):
    """A layer that is none of torch's."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.randn(outputs, inputs)), None

    def forward(self, input: Tensor) -> Tensor:
        return input @ self.weight.T


def test_the_flops_of_an_added_layer_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(registry._COUNTERPARTS, Plain, Linear)
    model, x = nn.Sequential(Plain(8, 12)), torch.randn(4, 8)
    assert dense_flops(model, x).forward == 2 * 4 * 96
    assert topkast.sparsify(model, topkast.TopKAST(0.75, 0.5)).flops(x).forward == 2 * 4 * 24


def test_a_data_set_is_one_entry(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    toy = DataSet("text", "Toy", ("toy.txt",), "nowhere: it is a toy")
    monkeypatch.setitem(DATA_SETS, "toy", toy)
    monkeypatch.setenv("TOPKAST_DATA", str(tmp_path))
    with pytest.raises(FileNotFoundError, match="toy can be had from nowhere: it is a toy"):
        find_dataset("toy")
    (tmp_path / "toy.txt").write_text("toys")
    assert find_dataset("toy") == tmp_path / "toy.txt"
