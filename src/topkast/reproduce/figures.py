"""Experiments as figures, with the paper's axes, order and legends."""

from __future__ import annotations

import statistics
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from topkast.core.sets import Counts
from topkast.methods.named import METHODS
from topkast.report.drawings import (
    BLACK,
    BLUE,
    GREEN,
    GREY,
    ORANGE,
    PURPLE,
    RED,
    SKY,
    draw_band,
    legend,
    looks,
    new_figure,
    say_empty,
    styled,
)
from topkast.report.groups import Group
from topkast.reproduce.budgets import BUDGETS
from topkast.reproduce.experiment import Findings
from topkast.reproduce.recipes import Recipe
from topkast.train.config import run_config_of
from topkast.train.resolve import make_method
from topkast.train.trained import CONFIG

# Colour and marker of a method; one that the paper does not draw has the last.
_LOOKS = {
    "dense": (BLACK, "*"),
    "static": (GREY, "x"),
    "set": (GREEN, "s"),
    "rigl": (RED, "D"),
    "pruning": (PURPLE, "^"),
    "topkast": (BLUE, "o"),
}
_OTHER = (SKY, "v")
Pairs = Sequence[tuple[Recipe, Group]]
_BY_SPARSITY = {0.8: BLUE, 0.9: ORANGE, 0.95: GREEN, 0.98: BLUE, 0.99: ORANGE}


def _look(recipe: Recipe) -> tuple[str, str]:
    return _LOOKS.get(recipe.method, _OTHER)


def _quality_label(findings: Findings) -> str:
    run = next(iter(findings.groups.values())).first
    return f"{run.quality_name} {'↑' if run.higher_is_better else '↓'}"


def _point(axes: Any, x: float, found: Group, color: str, marker: str, name: str | None) -> None:
    spread = found.deviation if len(found.qualities) > 1 else 0.0
    axes.errorbar(
        x, found.mean, yerr=spread, color=color, marker=marker, ms=6, capsize=2.5, lw=1.2, ls="", label=name
    )


def _families(axes: Any, findings: Findings, x: Callable[[Group], float]) -> None:
    """A point for each row, a colour and marker for each method, a line through those of Top-KAST."""
    named: set[str] = set()
    for recipe, found in findings.pairs():
        title = METHODS[recipe.method].title
        _point(axes, x(found), found, *_look(recipe), None if title in named else title)
        named.add(title)


def _line(axes: Any, found: Pairs, color: str, marker: str, name: str) -> None:
    """Groups by their backward sparsity, as points with a line through them."""
    points = [(100 * (recipe.backward or 0), one) for recipe, one in found]
    points.sort(key=lambda point: point[0])
    for i, (x, one) in enumerate(points):
        _point(axes, x, one, color, marker, name if i == 0 else None)
    axes.plot([x for x, _ in points], [one.mean for _, one in points], color=color, lw=1)


def _dressed(figure: Any, axes: Any, findings: Findings, what: str) -> Any:
    axes.set_xlabel(what)
    axes.set_ylabel(_quality_label(findings))
    legend(figure, axes)
    return figure


def _note(axes: Any, x: float, found: Group) -> None:
    text = found.name.removeprefix("Top-KAST ")
    axes.annotate(text, (x, found.mean), xytext=(5, -9), textcoords="offset points", fontsize=7, color=GREY)


@styled
def flops(findings: Findings) -> Any:
    """Figure 2a: quality against training FLOPs, Top-KAST's points with their sparsities."""
    figure, axes = new_figure(height=3.6)
    _families(axes, findings, lambda found: found.flops)
    for recipe, found in findings.pairs():
        if recipe.method == "topkast":
            _note(axes, found.flops, found)
    return _dressed(figure, axes, findings, "FLOPs of training, against a dense run")


@styled
def backward(findings: Findings) -> Any:
    """Figure 2b: quality against mean backward sparsity; colours are forward sparsities, markers methods."""
    figure, axes = new_figure(height=3.8)
    at = {found.name: 100 * (1 - mean_backward(found)) for found in findings.groups.values()}
    for recipe, found in findings.pairs():
        color = BLACK if recipe.forward is None else _BY_SPARSITY[recipe.forward]
        _point(axes, at[found.name], found, color, _look(recipe)[1], None)
    for forward in (0.8, 0.9, 0.95):
        color = _BY_SPARSITY[forward]
        ours = [(at[found.name], found.mean) for _, found in _ours(findings, forward)]
        axes.plot(*zip(*sorted(ours), strict=True), color=color, lw=1) if ours else None
        axes.plot([], [], color=color, lw=4, label=f"{100 * forward:g} % forward")
    for method, marker in {r.method: _look(r)[1] for r, _ in findings.pairs()}.items():
        axes.plot([], [], color=GREY, marker=marker, ls="", label=METHODS[method].title)
    return _dressed(figure, axes, findings, "mean backward sparsity, %")


def _ours(findings: Findings, forward: float) -> Pairs:
    return [(r, g) for r, g in findings.pairs() if (r.method, r.forward) == ("topkast", forward)]


def mean_backward(found: Group) -> float:
    """Mean density of the weight gradient over the run, over all sparse layers; 1 for dense (Figure 2b)."""
    run = found.first
    method = make_method(run_config_of(run.config.encode(), run.folder / CONFIG))
    if method is None:
        return 1.0
    total = sum(layer.numel for layer in run.layers.values())
    share = 0.0
    for layer in run.layers.values():
        counts = Counts(layer.numel, layer.forward, layer.backward)
        if method.resizes:  # recorded as it was at the start
            counts = Counts.from_density(
                layer.numel, 1 - method.forward_sparsity, 1 - method.backward_sparsity
            )
        steps = range(1, run.steps + 1)
        share += statistics.fmean(method.densities(step, counts)[1] for step in steps) * layer.numel / total
    return share


@styled
def high_sparsity(findings: Findings) -> Any:
    """Figure 2c: quality against backward sparsity at 98 and 99 %, RigL as a line across."""
    figure, axes = new_figure(height=3.6)
    for forward, color in ((0.98, BLUE), (0.99, ORANGE)):
        _line(axes, _ours(findings, forward), color, "o", f"Top-KAST {100 * forward:g} %")
        for method, dashes in (("rigl", "--"), ("static", ":")):
            for recipe, found in findings.pairs():
                if (recipe.method, recipe.forward) == (method, forward):
                    axes.axhline(found.mean, color=color, ls=dashes, lw=1.5, label=found.name + " %")
    return _dressed(figure, axes, findings, "backward sparsity, %")


@styled
def pairs(findings: Findings) -> Any:
    """Figure 3c: quality against backward sparsity, a line for each forward sparsity, dense across."""
    figure, axes = new_figure()
    for forward, color, marker in ((0.8, BLUE, "o"), (0.9, ORANGE, "s"), (0.95, GREEN, "^")):
        _line(axes, _ours(findings, forward), color, marker, f"{100 * forward:g} % forward")
    if "dense" in findings.groups:
        axes.axhline(findings.groups["dense"].mean, color=BLACK, ls="--", label="dense")
    return _dressed(figure, axes, findings, "backward sparsity, %")


@styled
def dots(findings: Findings) -> Any:
    """A line for each row in the paper's order: the mean as a large dot, seeds as small ones.

    No bars: they would have to begin at zero, where nothing could be told apart.
    """
    found = findings.pairs()
    figure, axes = new_figure(height=1.0 + 0.36 * max(1, len(found)))
    for i, (recipe, one) in enumerate(found):
        seeds = list(one.qualities.values())
        axes.plot([one.mean], [i], "o", ms=8, color=_look(recipe)[0])
        axes.plot(seeds, [i] * len(seeds), "o", ms=3, mfc="white", mec="black", mew=0.7, ls="")
        axes.annotate(
            f"{one.mean:.4g}",
            (max(one.mean, *seeds), i),
            xytext=(5, 0),
            textcoords="offset points",
            va="center",
            fontsize=8,
        )
    names = ["\n".join(textwrap.wrap(one.name, 24)) for _, one in found]
    axes.set_yticks(range(len(found)), labels=names, fontsize=8)
    axes.set_ylim(len(found) - 0.5, -0.5)  # the first at the top
    axes.margins(x=0.16)
    axes.set_xlabel(_quality_label(findings), loc="left")
    axes.grid(True, axis="y")
    return figure


@styled
def mask_change(findings: Findings) -> Any:
    """Figure 3a: change of the mask between moments, mean over layers with a band, first seed."""
    figure, axes = new_figure()
    found = next(iter(findings.groups.values()))
    masks = next(iter(found.results.values()))["masks"]
    draw_band(
        axes,
        [m["to"] for m in masks],
        [[100 * s for s in m["layers"].values()] for m in masks],
        (BLUE, "-"),
        "change",
    )
    axes.set_ylim(bottom=0)
    axes.set_xlabel("step")
    axes.set_ylabel("units that changed since\nthe comparison before, %")
    return figure


@styled
def reservoir_use(findings: Findings) -> Any:
    """Figure 3b: share of the initial C that has been in A, mean over layers with a band, first seed."""
    figure, axes = new_figure()
    points = next(iter(findings.groups.values())).first.points
    values = [[100 * layer.activated for layer in point.layers.values()] for point in points]
    draw_band(axes, [point.step for point in points], values, (BLUE, "-"), "used")
    axes.set_ylim(bottom=0)
    axes.set_xlabel("step")
    axes.set_ylabel("units of C ever in A, %")
    return figure


@styled
def budgets(findings: Findings) -> Any:
    """Quality against each cost, dense networks on a line; and held-out quality over the time of training."""
    figure, axes = new_figure(height=7.6)
    axes.remove()
    grid = figure.add_gridspec(3, 2)
    for i, (name, cost) in enumerate(BUDGETS.items()):
        part = figure.add_subplot(grid[i // 2, i % 2])
        _against(part, findings, cost)
        part.set_xlabel(f"{name}{_UNITS[name]}")
        if i % 2 == 0:
            part.set_ylabel(_quality_label(findings), fontsize=8)
    curves = figure.add_subplot(grid[2, :])
    look_of = looks(findings.groups)
    for name, found in findings.groups.items():
        color, dashes = look_of[name]
        points = found.points
        seconds = [point.seconds for point in points]
        curves.plot(seconds, [point.quality for point in points], color=color, ls=dashes, label=name)
    _logarithmic(curves)
    curves.set_xlabel("seconds of training")
    curves.set_ylabel(f"held-out {_quality_label(findings)}", fontsize=8)
    legend(figure, curves)
    return figure


_UNITS = {
    "parameters": " in use",
    "FLOPs": " of training",
    "time": " of training, s",
    "bytes": " in training",
}


def _against(axes: Any, findings: Findings, cost: Callable[[Group], float]) -> None:
    """A point for each row by what it costs, and a line through the dense ones."""
    dense = [(cost(g), g.mean) for r, g in findings.pairs() if r.method == "dense"]
    axes.plot(*zip(*sorted(dense), strict=True), color=BLACK, lw=1) if dense else None
    for recipe, found in findings.pairs():
        _point(axes, cost(found), found, *_look(recipe), None)
        if recipe.method == "topkast":
            _note(axes, cost(found), found)
    _logarithmic(axes)


def _logarithmic(axes: Any) -> None:
    """Powers of ten as plain numbers: figures have no mathematics in their text."""
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}".replace("e+", "e"))
    axes.xaxis.set_minor_formatter(lambda value, _: "")


FIGURES: Mapping[str, Callable[[Findings], Any]] = {
    draw.__name__: draw
    for draw in (flops, backward, high_sparsity, pairs, dots, mask_change, reservoir_use, budgets)
}


def draw(findings: Findings) -> Any | None:
    """The figure of an experiment; None if it has none, an empty one that says so if nothing is run yet."""
    if not findings.experiment.figure:
        return None
    if not findings.groups:
        return _empty()
    return FIGURES[findings.experiment.figure](findings)


@styled
def _empty() -> Any:
    figure, axes = new_figure()
    say_empty(axes, "not run yet")
    return figure


def drawable(all_findings: Iterable[Findings]) -> list[Findings]:
    """Those with something to draw."""
    return [f for f in all_findings if f.experiment.figure and f.groups]
