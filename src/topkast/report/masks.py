"""How the sets moved: the paper's Figure 3a and 3b, and the size of the weights in each set."""

from __future__ import annotations

from typing import Any

from topkast.extras import load_matplotlib
from topkast.report.style import LINES, draw_band, finite, legend, new_figure, say_empty, styled
from topkast.store.run import Run


@styled
def change_figure(run: Run) -> Any:
    """Share of weights that entered or left A at the last refresh: minimum, mean, maximum over layers."""
    return _figure(run, [("changed", "mean over layers")], "share of weights that\nentered or left A", 100)


@styled
def reservoir_figure(run: Run) -> Any:
    """Share of the initial C that has ever been in B, and in A."""
    rows = [("used", "has been in B"), ("activated", "has been in A")]
    return _figure(run, rows, "share of the initial C", 100)


@styled
def size_figure(run: Run) -> Any:
    """Mean |θ| on A and on B∖A."""
    return _figure(run, [("mean_a", "A"), ("mean_explored", "B∖A")], "mean |θ|", 1)


def _figure(run: Run, rows: list[tuple[str, str]], what: str, factor: float) -> Any:
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
