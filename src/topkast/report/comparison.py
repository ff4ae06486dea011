"""One page of several runs of the same task: a table, curves in the same axes, the best on top."""

from __future__ import annotations

import math
import shlex
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from topkast.report.charts import final_figure
from topkast.report.drawings import Drawing, save
from topkast.report.groups import Group, group
from topkast.report.page import Section, every_drawing, notes, qualities, render
from topkast.report.summary import state
from topkast.store.files import check_target
from topkast.store.run import Progress, Reference, Run
from topkast.text import (
    MISSING,
    bare,
    count,
    duration,
    flops,
    measured,
    of_whole,
    percent,
    quality,
    size,
)

_SHARED = ("parameters in use", "FLOPs per step", "bytes")
_AFTER = ("steps", *(f"{name} (of dense)" for name in _SHARED), "time per step", "peak memory of the process")


@dataclass(frozen=True)
class Contender:
    """A run, or a reference that one of the runs brought along."""

    quality: float
    seeds: Sequence[float]
    points: Sequence[Progress]
    row: tuple[str, ...]


def write_comparison(runs: Sequence[Run], out: Path) -> Path:
    """Writes one page of several runs; its figures go into a folder beside it, `NAME-figures`.

    Runs that differ in their seed alone are one line: their mean, with the standard deviation. A reference
    such as "dense" appears once, from the first run that has it.

    Returns:
        The page.

    Raises:
        ValueError: The runs are fewer than two, or not of the same task.
        ImportError: matplotlib is missing.
        OSError: The page or a figure cannot be written.
    """
    _check(runs)
    check_target(out, "--out")
    first, contenders = runs[0], _contenders(runs)
    curves = {name: c.points for name, c in contenders.items() if c.points}
    last = {name: c.quality for name, c in contenders.items()}
    seeds = {name: c.seeds for name, c in contenders.items() if len(c.seeds) > 1}
    final = Drawing(
        "final_quality",
        f"Held-out {bare(first.quality_name)} at the end",
        "The last record of each run and of each reference, best on top. Dots are single seeds.",
        final_figure(last, first.quality_name, first.higher_is_better, seeds),
    )
    sections = [Section("Held-out quality", [*qualities(curves, first), final])]
    folder = out.with_name(f"{out.stem}-figures")
    save(every_drawing(sections), folder)
    content = {
        "title": f"{len(runs)} runs of the task “{first.task}”",
        "sentence": _sentence(first, last),
        "notes": _notes(runs),
        "header": ["run", f"held-out {first.quality_name}", *_AFTER],
        "rows": [(name, *c.row) for name, c in contenders.items()],
        "sections": sections,
        "commands": "\n".join(_command(run) for run in runs),
        "source": ", ".join(str(run.folder) for run in runs),
        "figures": folder,
    }
    return render("comparison.html", content, out)


def _check(runs: Sequence[Run]) -> None:
    if len(runs) < 2:
        raise ValueError(f"a comparison takes at least two runs, got {len(runs)}")
    first = runs[0]
    folders = [run.folder.resolve() for run in runs]
    for run in runs:
        if folders.count(run.folder.resolve()) > 1:
            raise ValueError(f"{run.folder} is given twice: give each run once")
        if (run.task, run.quality_name) != (first.task, first.quality_name):
            raise ValueError(
                f"runs of different tasks cannot be compared: {first.folder} is “{first.task}” in "
                f"{first.quality_name}, {run.folder} is “{run.task}” in {run.quality_name}; "
                "make a page of each task"
            )


def _contenders(runs: Sequence[Run]) -> dict[str, Contender]:
    found = {
        one.name: Contender(one.mean, list(one.qualities.values()), one.points, _row(one))
        for one in group(runs)
    }
    for run in runs:
        for reference in run.references.values():
            if reference.name not in found:
                row = _reference_row(reference, run.quality_name)
                found[reference.name] = Contender(reference.quality, [], reference.points, row)
    return found


def _row(together: Group) -> tuple[str, ...]:
    run = together.first
    used, spent = run.parameters.get("used", math.nan), run.flops_per_step.get("sparse", math.nan)
    held = run.bytes
    reached = measured(together.mean, run.quality_name, together.deviation)
    if len(together.runs) > 1:
        reached += f" ({len(together.runs)} seeds)"
    ends = [r.end for r in together.runs.values()]
    peaks = [end.peak_rss for end in ends if end is not None and end.peak_rss is not None]
    return (
        reached,
        f"{run.last.step:,}",
        _with_share(count(used), of_whole(used, run.parameters.get("dense", math.nan))),
        _with_share(flops(spent), of_whole(spent, run.flops_per_step.get("dense", math.nan))),
        MISSING if held is None else _with_share(size(held.sparse), of_whole(held.sparse, held.dense)),
        duration(statistics.fmean(r.seconds_per_step for r in together.runs.values())),
        size(max(peaks)) if peaks else MISSING,
    )


def _with_share(text: str, share: float) -> str:
    return f"{text} ({percent(share)})" if math.isfinite(share) and share != 1 else text


def _reference_row(reference: Reference, quality_name: str) -> tuple[str, ...]:
    return (
        measured(reference.quality, quality_name),
        f"{reference.points[-1].step:,}" if reference.points else MISSING,
        count(reference.parameters),
        MISSING,
        size(reference.bytes),
        duration(reference.seconds_per_step),
        MISSING,
    )


def _sentence(first: Run, last: dict[str, float]) -> str:
    known = {name: value for name, value in last.items() if math.isfinite(value)}
    better = "higher" if first.higher_is_better else "lower"
    if not known:
        return f"No run has a finite held-out {bare(first.quality_name)}."
    best = (max if first.higher_is_better else min)(known, key=known.__getitem__)
    reached = f"{quality(known[best], first.quality_name)} held-out {bare(first.quality_name)}"
    return f"The best is {best}, with {reached} ({better} is better)."


def _notes(runs: Sequence[Run]) -> list[str]:
    found = []
    for run in runs:
        found += [f"{run.name} ({run.folder.name}): {note}" for note in (state(run), *notes(run)) if note]
    if len({run.steps for run in runs}) > 1:
        found.append(
            "The runs have different numbers of steps: compare them by FLOPs or time, not at the end."
        )
    return found


def _command(run: Run) -> str:
    return f"topkast train --config {shlex.quote(str(run.folder / 'config.toml'))}   # {run.name}"
