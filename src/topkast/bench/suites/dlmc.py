"""Suite `dlmc`: forward passes of the matrices that kernels for sparse inference are compared on, by shape.

The Deep Learning Matrix Collection has the pruned weights of a Transformer and of ResNet-50. Sparse Register
Tiling (Wilkinson et al., PLDI 2023) reports 2.65 times dense as the mean over 2,396 matrices between 60 and
95 %, on its authors' machine. The files are in no package index, so weights here are drawn: A is what Top-K
leaves of a layer's own start.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from statistics import geometric_mean

import torch
from torch import nn

from topkast.bench.forward import forward_records, measure_forward
from topkast.bench.ratios import Pair, Say, Table, show_pair, sparsities
from topkast.bench.report import Report
from topkast.text import times

# Columns and rows. A convolution is the matrix on its patches: channels × height × width of the kernel.
SHAPES = (
    ("Transformer, attention", 512, 512),
    ("Transformer, feed-forward in", 512, 2048),
    ("Transformer, feed-forward out", 2048, 512),
    ("ResNet-50, 64 → 256, 1×1", 64, 256),
    ("ResNet-50, 64 → 64, 3×3", 576, 64),
    ("ResNet-50, 128 → 128, 3×3", 1152, 128),
    ("ResNet-50, 1024 → 256, 1×1", 1024, 256),
    ("ResNet-50, 256 → 256, 3×3", 2304, 256),
    ("ResNet-50, 512 → 2048, 1×1", 512, 2048),
    ("ResNet-50, 512 → 512, 3×3", 4608, 512),
)
GRID: tuple[Pair, ...] = tuple((s, s) for s in (0.6, 0.7, 0.8, 0.9, 0.95))
_CONTENDERS = ("native", "csr")


@dataclass(frozen=True)
class Settings:
    """What to measure.

    Attributes:
        tokens: Rows of the input: columns of the dense operand.
        pairs: Forward sparsities; the backward ones do not matter here.
        repeats: Rounds per measurement.
    """

    tokens: int = 512
    pairs: tuple[Pair, ...] = GRID
    repeats: int = 15


def run(settings: Settings, say: Say) -> Report:
    report = Report("dlmc", asdict(settings))
    found: dict[str, list[list[float]]] = {name: [] for name in _CONTENDERS}
    table = Table("", [f"{pair[0]:.0%}" for pair in settings.pairs], 32)
    say(f"forward pass on {settings.tokens} tokens: how many times faster than dense (below 1: slower)")
    say(table.header())
    for name, inputs, outputs in SHAPES:
        ratios: dict[str, list[float]] = {contender: [] for contender in _CONTENDERS}
        for pair in settings.pairs:
            torch.manual_seed(0)
            timings = measure_forward(
                nn.Sequential(nn.Linear(inputs, outputs, bias=False)),
                torch.randn(settings.tokens, inputs),
                pair,
                contenders=_CONTENDERS,
                where=f"{name}, {show_pair(pair)}",
                repeats=settings.repeats,
                left_out=report.left_out,
            )
            sizes = {"inputs": inputs, "outputs": outputs, "tokens": settings.tokens}
            report.rows += forward_records(name, sizes, pair, timings)
            for contender in ratios.keys() & timings.keys():
                ratios[contender].append(timings["dense"].ratio_to(timings[contender]))
        for contender, row in ratios.items():
            if row:
                found[contender].append(row)
        say(table.line(name, [times(ratio) for ratio in ratios["native"] or ratios["csr"]]))
    for contender, rows in found.items():
        if rows:
            _overall(report, settings, contender, rows, table, say)
    for who, why in report.left_out.items():
        say(f"left out: {who}: {why}")
    return report


def _overall(
    report: Report, settings: Settings, contender: str, rows: list[list[float]], table: Table, say: Say
) -> None:
    """Means over all shapes, by sparsity and of all."""
    means = [geometric_mean(column) for column in zip(*rows, strict=True)]
    say(table.line(f"geometric mean, {contender}", [times(mean) for mean in means]))
    for pair, mean in zip(settings.pairs, means, strict=True):
        report.overall.append({**sparsities(pair), "contender": contender, "ratio": mean})
    every = [ratio for row in rows for ratio in row]
    plain = times(sum(every) / len(every))
    say(f"{contender}: arithmetic mean of all {plain}, geometric mean {times(geometric_mean(every))}")
