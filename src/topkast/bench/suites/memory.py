"""Suite `memory`: bytes of a Linear layer in training with Adam, as a share of the dense layer's."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import nn

from topkast.bench import contenders
from topkast.bench.bytes import dense_bytes, sparse_bytes
from topkast.bench.contenders import Work
from topkast.bench.peak import measure_peak, why_not
from topkast.bench.ratios import PAIRS, Pair, show_pair
from topkast.bench.report import Report
from topkast.bench.suites.linear import SHAPES
from topkast.bench.table import Say, Table
from topkast.convert import sparsify
from topkast.methods import TopKAST
from topkast.nn.base import SparseLayer


@dataclass(frozen=True)
class Settings:
    """What to measure.

    Attributes:
        tokens: Rows of the input; few, so that activations do not hide the layer.
        shapes: Inputs and outputs of each layer.
        pairs: Forward and backward sparsities.
    """

    tokens: int = 64
    shapes: tuple[tuple[int, int], ...] = SHAPES
    pairs: tuple[Pair, ...] = PAIRS


_PARTS = ("values, gradient, Adam", "sets", "plan", "reservoir", "sum", "without reservoir")


def run(settings: Settings, say: Say) -> Report:
    report = Report("memory", asdict(settings))
    reason = why_not()
    if reason is not None:
        report.left_out["peak"] = reason
    columns = (*_PARTS, *(() if reason else ("peak of training",)))
    say("a Linear layer in training with Adam, in bytes, as a share of the dense layer's")
    for inputs, outputs in settings.shapes:
        dense = _dense(inputs, outputs, settings.tokens, has_peak=reason is None)
        report.rows.append(dense)
        say(f"\nLinear {inputs} → {outputs}; dense: {_megabytes(dense)}")
        table = Table("sparsity", columns)
        say(table.header())
        for pair in settings.pairs:
            row = _sparse(inputs, outputs, settings.tokens, pair, has_peak=reason is None)
            report.rows.append(row)
            say(table.line(show_pair(pair), _cells(row, dense)))
    for name, why in report.left_out.items():
        say(f"left out: {name}: {why}")
    return report


def _dense(inputs: int, outputs: int, tokens: int, *, has_peak: bool) -> dict[str, Any]:
    layer, work = _layer_and_work(inputs, outputs, tokens)
    optimizer = torch.optim.Adam(layer.parameters(), lr=1e-4)
    layer(work.x).backward(work.upstream)
    optimizer.step()
    return {
        "inputs": inputs,
        "outputs": outputs,
        "contender": "dense",
        "bytes": dense_bytes(layer.weight, optimizer),
        "peak": measure_peak(inputs, outputs, tokens, None) if has_peak else None,
    }


def _sparse(inputs: int, outputs: int, tokens: int, pair: Pair, *, has_peak: bool) -> dict[str, Any]:
    layer, work = _layer_and_work(inputs, outputs, tokens)
    contender = contenders.ours(layer, pair, "auto")
    expected = contenders.expect(*contenders.alpha_layer(layer, pair), work)
    contenders.check(contender, expected, work, f"{inputs} → {outputs}, {show_pair(pair)}")
    model = nn.Sequential(layer)
    handle = sparsify(model, TopKAST(*pair), seed=0)
    optimizer = handle.attach(torch.optim.Adam(model.parameters(), lr=1e-4))
    model(work.x).backward(work.upstream)
    optimizer.step()
    sparse = model[0]
    assert isinstance(sparse, SparseLayer)
    return {
        "inputs": inputs,
        "outputs": outputs,
        "forward_sparsity": pair[0],
        "backward_sparsity": pair[1],
        "contender": "auto",
        "engine": sparse.weight.engine,
        "bytes": sparse_bytes(sparse.weight, optimizer),
        "peak": measure_peak(inputs, outputs, tokens, pair) if has_peak else None,
    }


def _layer_and_work(inputs: int, outputs: int, tokens: int) -> tuple[nn.Linear, Work]:
    torch.manual_seed(0)
    layer = nn.Linear(inputs, outputs, bias=False)
    return layer, Work.of(layer, (tokens, inputs))


def _cells(row: dict[str, Any], dense: dict[str, Any]) -> list[str]:
    parts, whole = row["bytes"], dense["bytes"]["total"]
    trained = parts["weight"] + parts["gradient"] + parts["optimizer"]
    figures = [trained, parts["sets"], parts["plan"], parts["reservoir"], parts["total"]]
    cells = [f"{figure / whole:.1%}" for figure in [*figures, parts["total"] - parts["reservoir"]]]
    if row["peak"] is not None:
        cells.append(f"{row['peak']['training'] / max(1, dense['peak']['training']):.1%}")
    return cells


def _megabytes(dense: dict[str, Any]) -> str:
    counted = f"{dense['bytes']['total'] / 1e6:.1f} MB"
    return counted if dense["peak"] is None else f"{counted}, peak {dense['peak']['training'] / 1e6:.1f} MB"
