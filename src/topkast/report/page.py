"""`report.html`: one run on one page that needs nothing else, no network and no script."""

from __future__ import annotations

import json
import re
import shlex
from importlib import metadata
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from topkast.report.drawings import save
from topkast.report.sections import every_drawing, of_one
from topkast.report.summary import LAYER_HEADER, is_finished, layer_rows, sentence, state, tiles
from topkast.store.files import replace
from topkast.store.run import Run

_TEMPLATES = Environment(
    loader=FileSystemLoader(Path(__file__).parent / "templates"),
    autoescape=True,  # every name and text of a run is text, never markup
    undefined=StrictUndefined,
    trim_blocks=True,
)


def _breakable(name: str) -> Markup:
    """A name that may be broken after a dot, an underscore or a slash, rather than anywhere."""
    return Markup("<wbr>").join(re.split(r"(?<=[._/])", name))


_TEMPLATES.filters["breakable"] = _breakable


def write_report(run: Run, out: Path | None = None) -> Path:
    """Writes the page of one run, and its figures into the run's folder.

    Args:
        out: The page; by default `report.html` in the run's folder.

    Returns:
        The page.

    Raises:
        ImportError: matplotlib is missing.
        OSError: The page or a figure cannot be written.
    """
    out = check_target(run.folder / "report.html" if out is None else out)
    sections = of_one(run)
    folder = run.folder / "figures"
    save(every_drawing(sections), folder)
    content = {
        "title": f"{run.name}: {run.task}",
        "sentence": sentence(run),
        "data": run.title,
        "state": state(run),
        "notes": notes(run),
        "tiles": tiles(run),
        "sections": sections,
        "step": f"{run.last.step:,}",
        "layer_header": LAYER_HEADER,
        "layers": layer_rows(run),
        "commands": _commands(run),
        "config": run.config,
        "environment": [(key, _text(value)) for key, value in run.environment.items()],
        "source": run.folder,
        "figures": folder,
    }
    return render("run.html", content, out)


def check_target(path: Path) -> Path:
    """Raises OSError if no page can be there: better before the figures are drawn than after."""
    if path.is_dir():
        raise IsADirectoryError(f"--out takes a file, {path} is a folder")
    if not path.absolute().parent.is_dir():
        raise FileNotFoundError(f"--out: the folder {path.absolute().parent} does not exist; create it first")
    return path


def render(template: str, content: dict[str, Any], out: Path) -> Path:
    """Fills in a template and writes it."""
    page = _TEMPLATES.get_template(template).render(content, version=metadata.version("topkast"))
    # A lone surrogate, which JSON can hold, is no UTF-8: better a question mark than no page.
    replace(out, page.encode("utf-8", errors="replace"))
    return out


def notes(run: Run) -> list[str]:
    """What a reader must know of the record."""
    found = list(run.notes)
    bad = [point.step for point in run.points if not _is_finite(point.quality) or not _is_finite(point.loss)]
    if bad:
        what = "a loss or held-out quality that is not finite, left out of the figures"
        found.append(f"{len(bad)} of {len(run.points)} records, the first at step {bad[0]:,}, have {what}.")
    return found


def _is_finite(value: float) -> bool:
    return value == value and abs(value) != float("inf")


def _commands(run: Run) -> str:
    folder = shlex.quote(str(run.folder))
    config = shlex.quote(str(run.folder / "config.toml"))
    lines = [
        f"topkast train --config {config}   # the same run again",
        f"topkast report {folder}   # this page anew",
    ]
    if not is_finished(run):
        lines.insert(0, f"topkast train --resume {folder}   # go on from the last checkpoint")
    return "\n".join(lines)


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
