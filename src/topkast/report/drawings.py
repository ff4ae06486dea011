"""Figures on their way to a page: saved as SVG and PNG, and as SVG that can stand inside HTML."""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from html import escape
from pathlib import Path
from typing import Any

from markupsafe import Markup

from topkast.report.style import in_style
from topkast.store.files import replace

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
