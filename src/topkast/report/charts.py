"""The figures of runs: curves, how the sets moved, what training takes, how good several became."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from topkast.cost.memory import PARTS
from topkast.extras import load_matplotlib
from topkast.report.drawings import (
    BLACK,
    BLUE,
    GREEN,
    GREY,
    LINES,
    ORANGE,
    PURPLE,
    RED,
    SKY,
    draw_band,
    draw_line,
    finite,
    label,
    legend,
    looks,
    new_figure,
    say_empty,
    styled,
)
from topkast.store.run import Bytes, Progress, Run
from topkast.text import measured

_WIDE = 20
_PREFIXES = ("", "k", "M", "G", "T", "P", "E", "Z")

Curves = Mapping[str, Sequence[Progress]]
"""Name → points; the first is the one that stands out."""


@dataclass(frozen=True)
class Axis:
    """What curves are drawn against.

    Attributes:
        name: "step", "flops" or "time".
        title: In a caption: "by step".
        field: Of `Progress`.
    """

    name: str
    title: str
    field: str

    def scale(self, largest: float) -> tuple[float, str]:
        """What to divide by, and the label with its unit."""
        if self.name == "flops":
            power = min(len(_PREFIXES) - 1, max(0, int(math.log10(largest) // 3))) if largest >= 1 else 0
            return 1000.0**power, f"FLOPs spent, {_PREFIXES[power]}FLOP"
        if self.name == "time":
            size, unit = next(((s, u) for s, u in ((3600, "h"), (60, "min")) if largest >= 2 * s), (1, "s"))
            return size, f"training time, {unit}"
        return 1, "step"


AXES = (
    Axis("step", "by step", "step"),
    Axis("flops", "by FLOPs", "flops"),
    Axis("time", "by time", "seconds"),
)


def of_run(run: Run) -> dict[str, Sequence[Progress]]:
    """The run's own curve first, then its references'."""
    others = {_distinct(r.name, run.name): r.points for r in run.references.values() if r.points}
    return {run.name: run.points, **others}


def _distinct(name: str, taken: str) -> str:
    return f"{name} (reference)" if name == taken else name


@styled
def loss_figure(curves: Curves, axis: Axis) -> Any:
    """Training loss, at every tenth step where that was recorded."""
    return _figure({name: _fine(points) for name, points in curves.items()}, axis, "loss", "training loss")


def _fine(points: Sequence[Progress]) -> list[Progress]:
    """The losses between evaluations as moments of their own; time and FLOPs pass evenly between two."""
    found: list[Progress] = []
    before = Progress(0, 0.0, math.nan, math.nan, 0.0)
    for point in points:
        for step, loss in point.losses:
            share = (step - before.step) / max(1, point.step - before.step)
            seconds, flops = (
                start + share * (end - start)
                for start, end in ((before.seconds, point.seconds), (before.flops, point.flops))
            )
            found.append(Progress(step, seconds, loss, math.nan, flops))
        if not point.losses:
            found.append(point)
        before = point
    return found


@styled
def quality_figure(curves: Curves, axis: Axis, quality_name: str, higher_is_better: bool) -> Any:
    """Held-out quality."""
    better = "higher" if higher_is_better else "lower"
    return _figure(curves, axis, "quality", f"held-out {label(quality_name)}\n({better} is better)")


def _figure(curves: Curves, axis: Axis, field: str, what: str) -> Any:
    figure, axes = new_figure()
    xs = {name: [float(getattr(p, axis.field)) for p in points] for name, points in curves.items()}
    ys = {name: [float(getattr(p, field)) for p in points] for name, points in curves.items()}
    size, title = axis.scale(max(finite([x for row in xs.values() for x in row]), default=0.0))
    drawn = False
    for name, look in looks(curves).items():
        pairs = [
            (x / size, y if math.isfinite(y) else math.nan) for x, y in zip(xs[name], ys[name], strict=True)
        ]
        pairs = [(x, y) for x, y in pairs if math.isfinite(x)]
        if any(y == y for _, y in pairs):
            draw_line(axes, [x for x, _ in pairs], [y for _, y in pairs], look, name)
            drawn = True
    axes.set_xlabel(title)
    axes.set_ylabel(what)
    if drawn:
        _scale_x(axes, axis, [x / size for row in xs.values() for x in finite(row)])
        legend(figure, axes)
    else:
        say_empty(axes, "no finite value was recorded")
    return figure


def _scale_x(axes: Any, axis: Axis, xs: Sequence[float]) -> None:
    """From zero; FLOPs that differ widely on a logarithmic axis, where a share of them is always as far."""
    if axis.name != "flops" or min(xs) <= 0 or max(xs) < _WIDE * min(xs):
        axes.set_xlim(left=0)
        return
    ticker = load_matplotlib()[1]
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(ticker.LogLocator(base=10, subs=(1, 2, 5), numticks=8))
    axes.xaxis.set_major_formatter(ticker.FuncFormatter(lambda x, _: f"{x:g}"))
    axes.xaxis.set_minor_locator(ticker.NullLocator())
    axes.set_xlabel(f"{axes.get_xlabel()} (logarithmic)")


@styled
def change_figure(run: Run) -> Any:
    """Share of weights that entered or left A at the last refresh: minimum, mean, maximum over layers.

    With two clocks also of those that entered B at the last exchange.
    """
    rows = [("changed", "mean over layers")]
    if any(layer.early is not None for point in run.points for layer in point.layers.values()):
        rows = [("changed", "entered or left A, at a refresh"), ("exchanged", "entered B, at an exchange")]
        return _sets_figure(run, rows, "share of weights that moved", 100)
    return _sets_figure(run, rows, "share of weights that\nentered or left A", 100)


@styled
def reservoir_figure(run: Run) -> Any:
    """Share of the initial C that has ever been in B, and in A."""
    rows = [("used", "has been in B"), ("activated", "has been in A")]
    return _sets_figure(run, rows, "share of the initial C", 100)


@styled
def density_figure(run: Run) -> Any:
    """|A|/n and |B|/n at each record, from those of the start: minimum, mean, maximum over layers."""
    figure, axes = new_figure()
    steps = [0, *(point.step for point in run.points)]
    for order, (field, name) in enumerate((("forward", "A"), ("backward", "B"))):
        rows = [[100 * getattr(layer, field) / layer.numel for layer in run.layers.values()]]
        rows += [
            [
                _percentage(getattr(p.layers[name], field), layer.numel)
                for name, layer in run.layers.items()
                if name in p.layers
            ]
            for p in run.points
        ]
        draw_band(axes, steps, rows, LINES[order], name)
    axes.set_xlabel("step")
    axes.set_ylabel("share of a layer's weights")
    axes.set_xlim(left=0)
    axes.set_ylim(bottom=0)
    axes.yaxis.set_major_formatter(load_matplotlib()[1].FuncFormatter(lambda y, _: f"{y:g} %"))
    legend(figure, axes)
    return figure


def _percentage(size: int | None, numel: int) -> float:
    return math.nan if size is None else 100 * size / numel


@styled
def size_figure(run: Run) -> Any:
    """Mean |θ| on A and on B∖A."""
    return _sets_figure(run, [("mean_a", "A"), ("mean_explored", "B∖A")], "mean |θ|", 1)


def _sets_figure(run: Run, rows: list[tuple[str, str]], what: str, factor: float) -> Any:
    figure, axes = new_figure()
    steps = [point.step for point in run.points]
    drawn = False
    for order, (field, name) in enumerate(rows):
        values = [[factor * getattr(layer, field) for layer in p.layers.values()] for p in run.points]
        drawn = drawn or any(finite(row) for row in values)
        draw_band(axes, steps, values, LINES[order], name)
    axes.set_xlabel("step")
    axes.set_ylabel(what)
    if not drawn:
        say_empty(axes, "nothing was recorded")
        return figure
    axes.set_xlim(left=0)
    axes.set_ylim(bottom=0)
    if factor == 100:
        axes.yaxis.set_major_formatter(load_matplotlib()[1].FuncFormatter(lambda y, _: f"{y:g} %"))
    legend(figure, axes)
    return figure


def has_masks(run: Run) -> bool:
    """Whether there is anything to draw; a dense run has no sets."""
    return any(point.layers for point in run.points)


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
    bars = {name: 1000 * seconds for name, seconds in times.items()}
    return _bars(bars, "time per step, ms", {run.name: BLUE}, lambda value: f"{value:.3g}")


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
    return _bars(values, what, colors, lambda value: measured(value, quality_name), seeds)


def _bars(
    values: Mapping[str, float],
    what: str,
    colors: Mapping[str, str],
    shown: Callable[[float], str],
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
        _value(axes, max([value, *seeds]), row, shown(value))
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
