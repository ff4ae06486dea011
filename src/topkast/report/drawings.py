"""One look for all figures, and their way to a page: SVG and PNG files, and SVG inside HTML."""

from __future__ import annotations

import functools
import io
import re
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from html import escape
from pathlib import Path
from typing import Any, TypeVar

from markupsafe import Markup

from topkast.extras import load_matplotlib
from topkast.store.files import replace
from topkast.store.run import is_dense

# Okabe and Ito's palette, which colour-blind readers can tell apart; lines differ in their dashes as well.
BLUE, ORANGE, GREEN, RED = "#0072B2", "#E69F00", "#009E73", "#D55E00"
PURPLE, SKY, BLACK, GREY = "#CC79A7", "#56B4E9", "#000000", "#555555"
LINES = [
    (BLUE, "-"),
    (ORANGE, "-."),
    (GREEN, (0, (5, 1))),
    (RED, ":"),
    (PURPLE, (0, (3, 1, 1, 1))),
    (SKY, "-"),
]
DENSE = (BLACK, "--")
# Small, so that at the width of a phone the letters are about as large as the page's own.
SIZE = (4.2, 3.1)
_LONGEST = 30
_FEW = 25
_RC: dict[Any, Any] = {
    "font.size": 10,
    "axes.labelsize": 10,
    "legend.fontsize": 9,
    "xtick.labelsize": 9,
    "ytick.labelsize": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": GREY,
    "xtick.color": GREY,
    "ytick.color": GREY,
    "xtick.labelcolor": "#222222",
    "ytick.labelcolor": "#222222",
    "axes.labelcolor": "#222222",
    "axes.grid": True,
    "axes.grid.axis": "y",
    "axes.axisbelow": True,
    "grid.color": "#E2E2E2",
    "grid.linewidth": 0.7,
    "axes.formatter.use_mathtext": False,
    "axes.formatter.useoffset": False,
    "text.parse_math": False,  # a dollar sign in a layer's name is no formula
    "svg.fonttype": "path",  # the same letters everywhere, whatever fonts the reader has
    "svg.hashsalt": "topkast",  # the same file for the same data
}

Look = tuple[str, Any]
"""Colour and dashes."""

_Draw = TypeVar("_Draw", bound=Callable[..., Any])


@contextmanager
def in_style() -> Iterator[None]:
    """Everything that makes or saves a figure goes in here."""
    load_matplotlib()
    import matplotlib

    with matplotlib.rc_context(_RC):
        yield


def styled(draw: _Draw) -> _Draw:
    """For functions from data to a Figure."""

    @functools.wraps(draw)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        with in_style():
            return draw(*args, **kwargs)

    return wrapper  # pyright: ignore[reportReturnType]


def new_figure(height: float = SIZE[1]) -> tuple[Any, Any]:
    """A figure and its axes."""
    figure_type, _ = load_matplotlib()
    figure = figure_type(figsize=(SIZE[0], height), layout="constrained", facecolor="white")
    return figure, figure.add_subplot()


def label(text: str, longest: int = _LONGEST) -> str:
    """A name as it can be drawn: one line of printable characters, the middle cut out of a long one."""
    clean = "".join(c if c.isprintable() else " " for c in text).strip() or "unnamed"
    if len(clean) <= longest:
        return clean
    tail = longest // 3
    return f"{clean[: longest - tail - 1]}…{clean[-tail:]}"


def looks(names: Iterable[str]) -> dict[str, Look]:
    """A look for each name: "dense" is black and dashed in every figure, the others follow each other."""
    found: dict[str, Look] = {}
    for name in names:
        order = sum(1 for look in found.values() if look != DENSE)
        found[name] = DENSE if is_dense(name) else LINES[order % len(LINES)]
    return found


def draw_line(axes: Any, xs: Sequence[float], ys: Sequence[float], look: Look, name: str) -> None:
    """A curve; its points are marked if they are few. Values that are not finite leave a gap."""
    color, dashes = look
    marker = "o" if len(xs) <= _FEW else ""
    width = 2.4 if look == LINES[0] else 1.7
    axes.plot(
        xs,
        ys,
        color=color,
        linestyle=dashes,
        marker=marker,
        markersize=3.5,
        linewidth=width,
        label=label(name),
    )


def draw_band(
    axes: Any, xs: Sequence[float], values: Sequence[Sequence[float]], look: Look, name: str
) -> None:
    """Mean over layers as a curve, minimum to maximum as a band around it."""
    kept = [(x, found) for x, row in zip(xs, values, strict=True) if (found := finite(row))]
    if not kept:
        return
    at = [x for x, _ in kept]
    lows, highs = [min(row) for _, row in kept], [max(row) for _, row in kept]
    axes.fill_between(at, lows, highs, color=look[0], alpha=0.2, linewidth=0)
    draw_line(axes, at, [sum(row) / len(row) for _, row in kept], look, name)


def finite(values: Sequence[float]) -> list[float]:
    return [v for v in values if abs(v) != float("inf") and v == v]


def legend(figure: Any, axes: Any) -> None:
    """Above the axes, where it hides nothing; none for a single curve."""
    names = axes.get_legend_handles_labels()[1]
    if len(names) < 2:
        return
    # About 48 letters fit beside each other; a key takes as much room as five.
    columns = max(1, min(len(names), 48 // (5 + max(len(name) for name in names))))
    figure.legend(loc="outside upper left", ncols=columns, frameon=False, handlelength=2.4, columnspacing=1.2)


def say_empty(axes: Any, text: str) -> None:
    axes.text(0.5, 0.5, text, transform=axes.transAxes, ha="center", va="center", color=GREY)
    axes.set_xticks([])
    axes.set_yticks([])


_DPI = 220


@dataclass(frozen=True)
class Drawing:
    """A figure and what to say of it.

    Attributes:
        name: Of its files.
        title: A few words.
        caption: What to see, and which figure of the paper it is like.
        figure: matplotlib's.
    """

    name: str
    title: str
    caption: str
    figure: Any

    @cached_property
    def svg(self) -> bytes:
        """The picture as an SVG file."""
        return _render(self.figure, "svg")

    def inline(self) -> Markup:
        """The picture as an element of a page; see `svg_element`."""
        return svg_element(self.svg.decode("utf-8"), self.name, self.title)


def save(drawings: Iterable[Drawing], folder: Path) -> None:
    """Writes each as SVG and PNG into the folder, which is made if it is not there."""
    folder.mkdir(parents=True, exist_ok=True)
    for drawing in drawings:
        replace(folder / f"{drawing.name}.svg", drawing.svg)
        replace(folder / f"{drawing.name}.png", _render(drawing.figure, "png"))


def _render(figure: Any, kind: str) -> bytes:
    buffer = io.BytesIO()
    # Without a date the same data gives the same file.
    metadata = {"Date": None} if kind == "svg" else {"Software": None}
    with in_style(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing", category=UserWarning)
        figure.savefig(buffer, format=kind, dpi=_DPI, metadata=metadata)
    return buffer.getvalue()


def svg_element(text: str, name: str, title: str) -> Markup:
    """An SVG file's text as one element for HTML.

    Its identifiers get the name before them, so that several can stand in one page; comments, which repeat
    the words of the figure, and metadata go; the size is left to the page.
    """
    text = text[text.index("<svg") :]
    text = re.sub(r"<!--.*?-->|<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    text = re.sub(r'(\bid="|href="#|url\(#)', rf"\g<1>{name}-", text)
    head, body = text.split(">", 1)
    head = re.sub(r'\s(width|height)="[^"]*"', "", head)
    head += f' role="img" aria-label="{escape(title, quote=True)}"'
    return Markup(f"{head}>{body}".strip())
