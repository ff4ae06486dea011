"""An experiment as a table: the paper's column, ours, and what ours took or would take."""

from __future__ import annotations

import csv
import io
import math
import textwrap
from collections.abc import Sequence

from topkast.report.groups import Group
from topkast.reproduce.experiment import Experiment, Findings
from topkast.reproduce.recipes import Recipe
from topkast.reproduce.scales import Scale
from topkast.text import MISSING, count, duration, flops, measured, narrow, percent, size
from topkast.train.config import run_config_of
from topkast.train.dry_run import planned
from topkast.train.trained import CONFIG

_TIME = "time"


def header(findings: Findings) -> list[str]:
    """Names of the columns."""
    quality = next((o.first.quality_name for o in findings.groups.values()), "quality")
    paper = (
        [f"paper: {findings.experiment.published.quantity}"] if findings.experiment.published.values else []
    )
    return ["", *paper, f"ours: {quality}", "rate", "parameters", "FLOPs of training", _TIME, "bytes"]


def rows(findings: Findings) -> list[tuple[str, ...]]:
    """One line for each row of the experiment, also for those that are not run."""
    printed = findings.experiment.published.values
    return [
        (
            row.label,
            *([_plain(printed.get(row.label))] if printed else []),
            *_ours(findings.groups.get(row.label), len(findings.seeds)),
        )
        for row in findings.experiment.rows
    ]


def _ours(found: Group | None, seeds: int) -> tuple[str, ...]:
    if found is None:
        return ("not run", *[MISSING] * 5)
    return (
        _quality(found, seeds),
        f"{_rate(found):.2g}",
        count(found.parameters),
        percent(found.flops),
        duration(found.seconds),
        MISSING if math.isnan(found.bytes) else size(found.bytes),
    )


def _rate(found: Group) -> float:
    """The learning rate of the runs, from their configuration."""
    run = found.first
    return run_config_of(run.config.encode(), run.folder / CONFIG).train.lr or math.nan


def _quality(found: Group, seeds: int) -> str:
    n = len(found.qualities)
    # Accuracies of one table may differ by less than a tenth of a point.
    text = f"{found.mean:.2f}" if found.unit == "points" else measured(found.mean, found.unit)
    if n > 1:
        text += f" ± {found.deviation:.2g}"
    return text if n == seeds else f"{text} ({n} of {seeds} seeds)"


def _plain(value: float | None) -> str:
    return MISSING if value is None else f"{value:.2f}" if value < 2 else f"{value:g}"


def markdown(findings: Findings, *, has_times: bool = True) -> str:
    """The table in Markdown, with or without the column of times."""
    head = header(findings)
    kept = [i for i, name in enumerate(head) if has_times or name != _TIME]
    lines = [[row[i] for i in kept] for row in (head, ["---"] * len(head), *rows(findings))]
    return "\n".join(map(_line, lines)) + "\n"


def _line(cells: list[str]) -> str:
    return (
        "| "
        + " | ".join(cell.replace("|", "\\|").replace("\N{NO-BREAK SPACE}", " ") for cell in cells)
        + " |"
    )


def comma_separated(findings: Findings) -> str:
    """The numbers, unrounded, a line for each row and seed."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(["row", "paper", "seed", "quality", "parameters", "flops", "seconds", "bytes"])
    printed = findings.experiment.published.values
    for row in findings.experiment.rows:
        found = findings.groups.get(row.label)
        if found is None:
            writer.writerow([row.label, printed.get(row.label, ""), *[""] * 6])
            continue
        for seed, quality in found.qualities.items():
            run = found.runs[seed]
            held = "" if run.bytes is None else run.bytes.sparse
            spent = run.last.flops
            seconds = run.seconds_per_step * run.last.step
            writer.writerow(
                [row.label, printed.get(row.label, ""), seed, quality, found.parameters, spent, seconds, held]
            )
    return out.getvalue()


# For a feeling of what FLOPs are: about what one of today's laptops and accelerators does in training.
_MACHINES = {"a laptop of 100 GFLOP/s": 1e11, "an accelerator of 100 TFLOP/s": 1e14}


def dry_run(experiments: Sequence[Experiment], scale: Scale, seeds: int) -> str:
    """A table of all different runs, and their sum."""
    recipes: dict[Recipe, str] = {}
    for experiment in experiments:
        for row in experiment.rows:
            recipes.setdefault(row.recipe, f"{experiment.name}: {row.label}")
    rows = [("run", "steps", "parameters", "of dense", "FLOPs", "of dense", "bytes")]
    total = 0.0
    for recipe, label in recipes.items():
        config = scale.config(recipe, 0, is_forecast=True)
        found = planned(config)
        assert config.train.steps is not None
        spent = found.run.total if found.run is not None else found.step.total * config.train.steps
        total += spent * seeds
        share = spent / (found.step.dense_total * config.train.steps)
        held = found.dense_bytes if recipe.method == "dense" else found.sparse_bytes
        parameters = found.parameters
        used, part = count(parameters.used), percent(parameters.fraction)
        steps = f"{config.train.steps:,}"
        rows.append((label, steps, used, part, flops(spent), percent(share), size(held)))
    times = ", ".join(f"{duration(total / rate)} on {name}" for name, rate in _MACHINES.items())
    end = f"{len(recipes)} runs × {seeds} seeds: {flops(total)}; that is {times}"
    return "\n".join([*narrow(rows), *textwrap.wrap(end, 80)])
