"""Curves of loss and held-out quality, of several runs in the same axes, against steps, FLOPs or time."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from topkast.extras import load_matplotlib
from topkast.report.style import draw_line, finite, label, legend, looks, new_figure, say_empty, styled
from topkast.store.run import Progress, Run

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
    """Training loss."""
    return _figure(curves, axis, "loss", "training loss")


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
    axes.set_xlabel(f"{axes.get_xlabel()}, logarithmic")
