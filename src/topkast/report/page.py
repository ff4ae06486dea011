"""`report.html`: one run on one page that needs nothing else, no network and no script."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterable
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from topkast.report.charts import (
    AXES,
    Curves,
    change_figure,
    density_figure,
    has_masks,
    loss_figure,
    memory_figure,
    of_run,
    quality_figure,
    reservoir_figure,
    size_figure,
    time_figure,
)
from topkast.report.drawings import Drawing, save
from topkast.report.summary import (
    LAYER_HEADER,
    SETTINGS_HEADER,
    is_finished,
    layer_rows,
    sentence,
    settings,
    state,
    tiles,
)
from topkast.store.files import check_target, replace
from topkast.store.run import Run
from topkast.text import bare

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
    out = check_target(run.folder / "report.html" if out is None else out, "--out")
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
        "sample": run.sample,
        "commands": _commands(run),
        "settings_header": SETTINGS_HEADER,
        "settings": settings(run),
        "config": run.config,
        "environment": [(key, _text(value)) for key, value in run.environment.items()],
        "source": run.folder,
        "figures": folder,
    }
    return render("run.html", content, out)


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
        f"topkast report {folder}   # this page again",
    ]
    if not is_finished(run):
        lines.insert(0, f"topkast train --resume {folder}   # continue from the last checkpoint")
    return "\n".join(lines)


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


@dataclass(frozen=True)
class Section:
    """Figures under one heading."""

    title: str
    drawings: list[Drawing]


_WHY = {
    "step": "At the same step, the distance between two curves is what sparsity costs in quality.",
    "flops": "A curve further left has spent less computation on the same quality. The paper's Figure 2a "
    "compares methods this way.",
    "time": "Training time on this machine, without evaluation.",
}


_BAND = "The line is the mean over layers; the band reaches from the smallest to the largest."


def of_one(run: Run) -> list[Section]:
    """The figures of a run's own page."""
    curves = of_run(run)
    sections = [
        Section("Held-out quality", qualities(curves, run)),
        Section("Training loss", _losses(curves)),
    ]
    if has_masks(run):
        sections.append(Section("How the sets change", _masks(run)))
    sections.append(Section("Memory and time", _costs(run)))
    return [section for section in sections if section.drawings]


def every_drawing(sections: Iterable[Section]) -> list[Drawing]:
    return [drawing for section in sections for drawing in section.drawings]


def qualities(curves: Curves, run: Run) -> list[Drawing]:
    """Held-out quality by step, FLOPs and time."""
    return [
        Drawing(
            f"quality_by_{axis.name}",
            f"Held-out {bare(run.quality_name)} {axis.title}",
            _WHY[axis.name],
            quality_figure(curves, axis, run.quality_name, run.higher_is_better),
        )
        for axis in AXES
    ]


def _losses(curves: Curves) -> list[Drawing]:
    caption = "Each point is the mean since the last record. A gap is a value that was not finite."
    return [
        Drawing(f"loss_by_{axis.name}", f"Training loss {axis.title}", caption, loss_figure(curves, axis))
        for axis in AXES
    ]


def _masks(run: Run) -> list[Drawing]:
    return [
        *([_densities(run)] if run.has_other_sizes else []),
        Drawing(
            "mask_change",
            "How the mask changes",
            "The mask is A, the weights that the network uses. A refresh chooses A; an exchange chooses B, "
            "the weights that are trained. The figure shows the share of a layer's weights that moved. "
            f"{_BAND} The share falls as the mask settles. The paper's Figure 3a compares masks 5,000 steps "
            "apart.",
            change_figure(run),
        ),
        Drawing(
            "reservoir_use",
            "How much of the reservoir is ever used",
            "The reservoir C has the weights that are neither used nor trained. The figure shows how much of "
            f"the first C has been in B or in A by then. {_BAND} In the paper's Figure 3b only about 5 % is "
            "ever used, most of it early.",
            reservoir_figure(run),
        ),
        Drawing(
            "weight_size",
            "Size of weights by set",
            f"The network uses A; B∖A is trained but not used yet. {_BAND} A weight enters A when it grows "
            "larger than the smallest there. The penalty on large weights is 1/D times as strong on B∖A, "
            "where D is the density of A (the paper's section 2.3).",
            size_figure(run),
        ),
    ]


def _densities(run: Run) -> Drawing:
    caption = f"The sizes of A and B, as shares of a layer's weights. {_BAND}"
    return Drawing("densities", "How dense the sets are", caption, density_figure(run))


def _costs(run: Run) -> list[Drawing]:
    drawings = []
    if run.bytes is not None and run.is_sparse:
        caption = (
            "What weights, gradients, optimizer state and sets take at the end of the run, without "
            "activations. The kernel plan is what the kernels derive from the sets."
        )
        figure = memory_figure(run, run.bytes)
        drawings.append(Drawing("memory", "Memory against dense", caption, figure))
    if run.references:  # a single bar would say no more than the tile does
        caption = "The mean over each run on the same machine, with refreshes and without evaluation."
        drawings.append(Drawing("step_time", "Time per step", caption, time_figure(run)))
    return drawings
