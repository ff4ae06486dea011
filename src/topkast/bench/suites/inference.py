"""Suite `inference`: a trained network's forward pass, our kernels against dense torch and onnxruntime.

For one row at a time, as who answers single requests has it, and for 64.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from itertools import pairwise

import torch
from torch import nn

from topkast.bench.forward import forward_records, measure_forward
from topkast.bench.ratios import PAIRS, Pair, Say, Table, show_pair
from topkast.bench.report import Report
from topkast.bench.timing import Timing
from topkast.text import times

ROWS = (1, 64)
_COLUMNS = ("ideal", "native", "csr", "onnxruntime", "native against onnxruntime")


@dataclass(frozen=True)
class Settings:
    """What to measure.

    Attributes:
        rows: How many rows the input has, one case for each.
        width: Inputs and outputs of the network; within it is four times as wide.
        depth: Hidden layers.
        pairs: Forward and backward sparsities.
        repeats: Rounds per measurement.
    """

    rows: tuple[int, ...] = ROWS
    width: int = 1024
    depth: int = 2
    pairs: tuple[Pair, ...] = PAIRS
    repeats: int = 30


def run(settings: Settings, say: Say) -> Report:
    report = Report("inference", asdict(settings))
    say("forward pass without gradients: how many times faster than dense torch (below 1: slower)")
    say("(ideal: 1/(1 - s) by FLOPs; onnxruntime computes the zeros too)")
    for rows in settings.rows:
        name = f"perceptron {_shape(settings)}, {rows} {'row' if rows == 1 else 'rows'}"
        say(f"\n{name}")
        table = Table("sparsity", _COLUMNS)
        say(table.header())
        for pair in settings.pairs:
            torch.manual_seed(0)
            timings = measure_forward(
                perceptron(_sizes(settings)).eval(),
                torch.randn(rows, settings.width),
                pair,
                contenders=("native", "csr", "onnxruntime"),
                where=f"{rows} rows, {show_pair(pair)}",
                repeats=settings.repeats,
                left_out=report.left_out,
            )
            report.rows += forward_records(name, {"tokens": rows}, pair, timings)
            say(table.line(show_pair(pair), _cells(pair, timings)))
    for who, why in report.left_out.items():
        say(f"left out: {who}: {why}")
    return report


def _shape(settings: Settings) -> str:
    return " → ".join(str(size) for size in _sizes(settings))


def _sizes(settings: Settings) -> list[int]:
    return [settings.width, *[4 * settings.width] * settings.depth, settings.width]


def perceptron(sizes: list[int]) -> nn.Sequential:
    """Linear layers with ReLU between them."""
    layers: list[nn.Module] = []
    for inputs, outputs in pairwise(sizes):
        layers += [nn.Linear(inputs, outputs), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def _cells(pair: Pair, timings: dict[str, Timing]) -> list[str]:
    cells = {name: times(timings["dense"].ratio_to(timing)) for name, timing in timings.items()}
    cells["ideal"] = times(1 / (1 - pair[0]))
    if "native" in timings and "onnxruntime" in timings:
        cells[_COLUMNS[-1]] = times(timings["onnxruntime"].ratio_to(timings["native"]))
    return [cells.get(column, "-") for column in _COLUMNS]
