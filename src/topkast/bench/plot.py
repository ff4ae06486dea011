"""The plot of speed-up against sparsity: ours, the peers, the ideal by FLOPs, dense and the break-even."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from topkast.bench.ratios import ideal
from topkast.bench.report import Report
from topkast.extras import load_matplotlib
from topkast.store.files import check_target

# Okabe and Ito's palette, which colour-blind readers can tell apart; markers differ as well.
_STYLES = {
    "native": ("#0072B2", "o"),
    "csr": ("#E69F00", "s"),
    "torch_csr": ("#E69F00", "s"),
    "masked": ("#CC79A7", "v"),
    "auto": ("#000000", "x"),
    "sparselab": ("#009E73", "^"),
    "sparseprop": ("#D55E00", "D"),
    "spops": ("#56B4E9", "P"),
}
_OTHER = ("#666666", ".")
_GREY = "#555555"
# What is labelled: ours, and the best of the others.
_OURS = "native"
_ENDINGS = (".svg", ".png", ".pdf")

Curve = dict[tuple[float, float], float]
"""Ratio to dense by pair of sparsities."""


def check_plot(path: Path) -> None:
    """Raises unless a plot can be written there: folder, ending and matplotlib."""
    check_target(path, "--plot")
    if path.suffix not in _ENDINGS:
        raise ValueError(f"--plot takes a file that ends in {', '.join(_ENDINGS)}, got {path.name}")
    load_matplotlib()


def check(report: Report) -> None:
    """Raises ValueError if there is nothing in the report to plot."""
    if report.suite != "linear" or not report.overall:
        raise ValueError(f"--plot shows the suite linear, this report is of the suite {report.suite}")


def curves(report: Report) -> dict[str, Curve]:
    """Name → ratio at each pair of sparsities, over all shapes; `native` also where break-even was sought."""
    found: dict[str, Curve] = {}
    for row in report.overall:
        pair = (row["forward_sparsity"], row["backward_sparsity"])
        found.setdefault(row["contender"], {})[pair] = row["ratio"]
    is_equal = all(f == b for curve in found.values() for f, b in curve)
    if report.break_even and is_equal and _OURS in found:
        last = report.break_even[-1]  # of the mean, or of the only shape
        grid = {(s, s): ratio for s, ratio in zip(last["sparsities"], last["ratios"], strict=True)}
        found[_OURS] = dict(sorted({**grid, **found[_OURS]}.items()))
    return found


def plot(report: Report, path: Path) -> None:
    """Draws the report into a file; its ending says how (svg, png, pdf).

    Raises:
        ImportError: matplotlib is missing.
        ValueError: The report has nothing to plot, or the ending is unknown.
        OSError: The folder does not exist.
    """
    check(report)
    check_plot(path)
    figure_type, ticker = load_matplotlib()
    figure = figure_type(figsize=(8, 5.2), layout="constrained")
    axes = figure.add_subplot()
    drawn = curves(report)
    pairs = sorted({pair for curve in drawn.values() for pair in curve})
    _draw_ideal(axes, pairs)
    axes.axhline(1, color=_GREY, linewidth=1)
    axes.annotate(
        "dense", (1, 1), xycoords=("axes fraction", "data"), **_text(-6, 4), ha="right", color=_GREY
    )
    for name, curve in drawn.items():
        _draw_curve(axes, name, curve)
    if all(f == b for f, b in pairs):  # which is where the break-even was looked for
        _draw_break_even(axes, report)
    _label(axes, drawn, report)
    _dress(axes, ticker, report, pairs)
    figure.savefig(path, dpi=150)


def _x(sparsity: float) -> float:
    """Where a sparsity stands: 1/density on a logarithmic axis, on which the ideal is a straight line."""
    return 1 / (1 - sparsity)


def _text(dx: float, dy: float) -> dict[str, Any]:
    return {"xytext": (dx, dy), "textcoords": "offset points", "fontsize": 10}


def _draw_ideal(axes: Any, pairs: list[tuple[float, float]]) -> None:
    xs, ys = [_x(pair[0]) for pair in pairs], [ideal(pair) for pair in pairs]
    axes.plot(xs, ys, linestyle="--", color=_GREY, linewidth=1.5, label="ideal by FLOPs")


def _draw_curve(axes: Any, name: str, curve: Curve) -> None:
    color, marker = _STYLES.get(name, _OTHER)
    is_ours = name == _OURS
    xs = [_x(pair[0]) for pair in curve]
    label = {_OURS: "topkast", "torch_csr": "torch CSR"}.get(name, name)
    axes.plot(xs, curve.values(), color=color, marker=marker, linewidth=2.5 if is_ours else 1.5, label=label)


def _label(axes: Any, drawn: dict[str, Curve], report: Report) -> None:
    """Numbers above our points and above the best of the others; not where break-even was sought, a crowd."""
    pairs = {(row["forward_sparsity"], row["backward_sparsity"]) for row in report.overall}
    others = [name for name in drawn if name not in (_OURS, "auto")]
    for pair in sorted(pairs):
        present = [name for name in others if pair in drawn[name]]
        best = [max(present, key=lambda name: drawn[name][pair])] if present else []
        for name in (*best, *([_OURS] if pair in drawn.get(_OURS, {}) else [])):
            ratio, color = drawn[name][pair], _STYLES.get(name, _OTHER)[0]
            weight = "bold" if name == _OURS else "normal"
            style = {"ha": "right", "color": color, "weight": weight}
            axes.annotate(f"{ratio:.1f}×", (_x(pair[0]), ratio), **_text(-4, 7), **style)


def _draw_break_even(axes: Any, report: Report) -> None:
    sparsity = report.break_even[-1]["sparsity"] if report.break_even else None
    if sparsity is None:
        return
    x = _x(sparsity)
    axes.plot([x], [1], marker="*", markersize=15, color="#0072B2", linestyle="none", zorder=5)
    axes.annotate(f"break-even\nat {sparsity:.0%}", (x, 1), **_text(6, -30), color="#0072B2")


def _dress(axes: Any, ticker: Any, report: Report, pairs: list[tuple[float, float]]) -> None:
    axes.set_xscale("log")
    axes.set_yscale("log")
    is_equal = all(f == b for f, b in pairs)
    labels = [f"{100 * f:g}" if is_equal else f"{100 * f:g}/{100 * b:g}" for f, b in pairs]
    axes.set_xticks([_x(f) for f, _ in pairs], labels=labels)
    axes.xaxis.set_minor_locator(ticker.NullLocator())
    axes.yaxis.set_major_locator(ticker.LogLocator(base=10, subs=(1, 2, 5)))
    axes.yaxis.set_major_formatter(ticker.FuncFormatter(lambda y, _: f"{y:g}×"))
    axes.yaxis.set_minor_locator(ticker.NullLocator())
    axes.grid(True, color="#DDDDDD", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.tick_params(labelsize=11)
    what = "sparsity, %, forward and backward alike" if is_equal else "forward/backward sparsity, %"
    axes.set_xlabel(what, fontsize=12)
    axes.set_ylabel("speed-up over dense PyTorch", fontsize=12)
    axes.set_title(_title(report), fontsize=11)
    axes.legend(loc="upper left", fontsize=11, frameon=False)


def _title(report: Report) -> str:
    env = report.environment
    shapes = ", ".join(f"{i}×{o}" for i, o in report.options["shapes"])
    return (
        f"Linear, forward + backward, {report.options['tokens']} tokens, mean of {shapes}\n"
        f"{env['cpu']}, {env['threads']} threads, {env['dtype']}, torch {env['torch']}"
    )
