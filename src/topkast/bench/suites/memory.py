"""Suite `memory`: bytes of a Linear layer in training with Adam, as a share of the dense layer's."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import nn

from topkast.bench import contenders
from topkast.bench.apart import measure_peak, measure_scale, why_not
from topkast.bench.contenders import Work
from topkast.bench.ratios import PAIRS, Pair, Say, Table, show_pair, sparsities
from topkast.bench.report import Report
from topkast.bench.suites.linear import SHAPES
from topkast.convert import sparsify
from topkast.cost.memory import dense_bytes, sparse_bytes
from topkast.methods import TopKAST
from topkast.nn.base import SparseLayer


@dataclass(frozen=True)
class Settings:
    """What to measure.

    Attributes:
        tokens: Rows of the input; few, so that activations do not hide the layer.
        shapes: Inputs and outputs of each layer.
        pairs: Forward and backward sparsities.
        large: Inputs, outputs and pair of a layer to be trained that would be large if it were dense.
        starts: Initial distributions of it; None is torch's own, which a user gets.
        growing: Layers with one |B|, to see how the time of an exchange follows the dense size.
    """

    tokens: int = 64
    shapes: tuple[tuple[int, int], ...] = SHAPES
    pairs: tuple[Pair, ...] = PAIRS
    large: tuple[tuple[int, int, Pair], ...] = ((31_250, 32_000, (0.99, 0.98)),)
    starts: tuple[str | None, ...] = (None, "lecun_normal")
    growing: tuple[tuple[int, int, Pair], ...] = (
        (4000, 5000, (0.9, 0.9)),
        (40_000, 50_000, (0.999, 0.999)),
    )


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
    _run_large(settings, report, say, has_peak=reason is None)
    for name, why in report.left_out.items():
        say(f"left out: {name}: {why}")
    return report


def _run_large(settings: Settings, report: Report, say: Say, *, has_peak: bool) -> None:
    cases = [(*layer, init) for layer in settings.large for init in settings.starts]
    for inputs, outputs, pair, init in cases if has_peak else ():
        row = measure_scale(inputs, outputs, pair, steps=3, init=init)
        report.rows.append({"contender": "large", **row})
        parts = row["memory"]
        say(f"\nLinear {inputs} → {outputs}, {show_pair(pair)}, start: {row['init']}")
        say(f"  {row['numel']:,} elements, {row['backward']:,} of them in B, drawn in {row['build']:.1f} s")
        say(
            f"  step on 64 tokens {row['step']:.2f} s; refresh {1000 * row['refresh']:.0f} ms right after an "
            f"exchange, {1000 * row['later']:.1f} ms later"
        )
        say(
            f"  exchange {row['exchange']:.2f} s ({row['exchanged'] / row['backward']:.0%} of B is new), "
            f"and {row['plan']:.2f} s for the new Plan"
        )
        say(
            f"  peak resident memory of the process {row['peak'] / 1e9:.2f} GB; the layer with Adam "
            f"{parts['total'] / 1e9:.2f} GB, dense {parts['dense'] / 1e9:.1f} GB"
        )
    first = None
    for inputs, outputs, pair in settings.growing if has_peak else ():
        row = measure_scale(inputs, outputs, pair, steps=0)
        report.rows.append({"contender": "growing", **row})
        first = row["exchange"] if first is None else first
        say(
            f"exchange of {row['backward']:,} elements of {row['numel']:,}: {row['exchange']:.3f} s, "
            f"{row['exchange'] / first:.2f}× the first"
        )


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
    with torch.device("meta"):
        model = nn.Sequential(nn.Linear(inputs, outputs, bias=False))
    handle = sparsify(model, TopKAST(*pair, refresh_every=1), reservoir="implicit", seed=0)
    optimizer = handle.attach(torch.optim.Adam(model.parameters(), lr=1e-4))
    for _ in range(2):  # the second with the sets of the first refresh
        model(work.x).backward(work.upstream)
        optimizer.step()
    model(work.x)
    sparse = model[0]
    assert isinstance(sparse, SparseLayer)
    return {
        "inputs": inputs,
        "outputs": outputs,
        **sparsities(pair),
        "contender": "implicit",
        "engine": sparse.weight.describe_engine(),
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
