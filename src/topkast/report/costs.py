"""What a run takes beside its references: bytes by part, time per step; and how good several runs became."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from topkast.cost.memory import PARTS
from topkast.report.style import (
    BLACK,
    BLUE,
    GREEN,
    GREY,
    ORANGE,
    PURPLE,
    RED,
    SKY,
    label,
    looks,
    new_figure,
    say_empty,
    styled,
)
from topkast.store.run import Bytes, Run

_COLORS = dict(zip(PARTS, (BLUE, SKY, ORANGE, GREEN, PURPLE, RED, BLACK), strict=True))
_LABELS = {
    "weight": "values of B",
    "plan": "kernel plan",
    "reservoir": "reservoir C",
    "optimizer": "optimizer state",
}
_REST = "biases, norms, dense layers"
_DENSE = "dense weights, gradients, optimizer"
_BAR = 0.62
_WIDEST = 16


@styled
def memory_figure(run: Run, counted: Bytes) -> Any:
    """Bytes by part, stacked, above the same model dense and the references that are not."""
    others = {r.name: r.bytes for r in run.references.values() if not r.is_dense and math.isfinite(r.bytes)}
    size, unit = _unit(max(counted.sparse, counted.dense, *others.values(), 1))
    bars: list[tuple[str, list[tuple[str, str, float]]]] = [(run.name, _own_parts(counted))]
    dense = [(_DENSE, "#9A9A9A", counted.part("dense")), (_REST, GREY, counted.rest)]
    bars.append(("same model, dense", [part for part in dense if part[2]]))
    bars += [(name, [("reference, all parts", "#C9C9C9", total)]) for name, total in others.items()]
    figure, axes = new_figure(height=2.1 + 0.42 * len(bars))
    named: set[str] = set()
    for row, (_, parts) in enumerate(bars):
        left = 0.0
        for name, color, amount in parts:
            key = name if name not in named else None
            axes.barh(
                row, amount / size, _BAR, left=left, color=color, label=key, edgecolor="white", linewidth=0.5
            )
            named.add(name)
            left += amount / size
        _value(axes, left, row, f"{left:.3g}")
    _dress_bars(axes, [name for name, _ in bars], f"memory, {unit}")
    figure.legend(loc="outside lower left", ncols=2, frameon=False, handlelength=1.2, columnspacing=1.2)
    return figure


def _own_parts(counted: Bytes) -> list[tuple[str, str, float]]:
    parts = [(_LABELS.get(part, part), _COLORS[part], float(counted.part(part))) for part in PARTS]
    return [part for part in [*parts, (_REST, GREY, float(counted.rest))] if part[2]]


def _unit(largest: float) -> tuple[float, str]:
    for size, unit in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if largest >= size:
            return size, unit
    return 1.0, "bytes"


@styled
def time_figure(run: Run) -> Any:
    """Milliseconds per step, of the run and of its references."""
    times = {run.name: run.seconds_per_step}
    times.update({r.name: r.seconds_per_step for r in run.references.values()})
    return _bars(
        {name: 1000 * seconds for name, seconds in times.items()}, "time per step, ms", {run.name: BLUE}
    )


@styled
def final_figure(
    qualities: Mapping[str, float],
    quality_name: str,
    higher_is_better: bool,
    seeds: Mapping[str, Sequence[float]] | None = None,
) -> Any:
    """Held-out quality at the end of each run, best on top, coloured as their curves are; seeds as dots."""
    known = [name for name, value in qualities.items() if math.isfinite(value)]
    best_first = sorted(known, key=qualities.__getitem__, reverse=higher_is_better)
    better = "higher" if higher_is_better else "lower"
    colors = {name: color for name, (color, _) in looks(qualities).items()}
    values = {name: qualities[name] for name in best_first}
    what = f"held-out {label(quality_name)} at the end\n({better} is better)"
    return _bars(values, what, colors, seeds or {})


def _bars(
    values: Mapping[str, float],
    what: str,
    colors: Mapping[str, str],
    dots: Mapping[str, Sequence[float]] | None = None,
) -> Any:
    values = {name: value for name, value in values.items() if math.isfinite(value)}
    figure, axes = new_figure(height=1.2 + 0.42 * max(1, len(values)))
    if not values:
        say_empty(axes, "no finite value was recorded")
        return figure
    for row, (name, value) in enumerate(values.items()):
        axes.barh(row, value, _BAR, color=colors.get(name, "#9A9A9A"))
        seeds = (dots or {}).get(name, ())
        axes.plot(seeds, [row] * len(seeds), "o", ms=3, mfc="white", mec="black", mew=0.7, ls="")
        _value(axes, max([value, *seeds]), row, f"{value:.4g}")
    _dress_bars(axes, list(values), what)
    return figure


def _value(axes: Any, x: float, row: int, text: str) -> None:
    axes.annotate(text, (x, row), xytext=(4, 0), textcoords="offset points", va="center", fontsize=9)


def _dress_bars(axes: Any, names: list[str], what: str) -> None:
    axes.set_yticks(
        range(len(names)), labels=["\n".join(textwrap.wrap(label(name), _WIDEST)) for name in names]
    )
    axes.invert_yaxis()
    axes.margins(x=0.16)
    if axes.dataLim.x0 >= 0:
        axes.set_xlim(left=0)
    axes.set_xlabel(what, loc="left")
    axes.grid(True, axis="x")
    axes.grid(False, axis="y")
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)
