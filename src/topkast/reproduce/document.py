"""`docs/results.md`: all results that are there, at every scale, with the command for each. Generated."""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from pathlib import Path

from topkast.kernels.machine import cpu_model
from topkast.report.words import duration
from topkast.reproduce import figures, tables
from topkast.reproduce.experiment import Findings
from topkast.reproduce.page import drawing, tally
from topkast.store.files import replace

_HEAD = """# Results

The tables and figures of the Top-KAST paper, ours beside theirs, as `topkast reproduce` writes them: this is
its output, not edited by hand. Ours are at the scale of a small machine: other networks, other data, far
shorter runs. What can be compared is the order of methods, not the numbers.

A claim *holds* or *does not hold* if that is so beyond the noise of the seeds (one-sided 95 %, seeds compared
in pairs), else it is *within noise*. *For one seed* says how that one came out, and nothing of noise. What
counts as comparable is said with it.

With each table is the time that its runs have trained, in all and without evaluation. Runs of one row may
have shared the machine with others than those of the next, so times of rows are only in the table that is
about them.
"""

# Whose rows were run to be compared by time.
_ABOUT_TIME = "time-and-bytes"


def write_document(by_scale: Mapping[str, Sequence[Findings]], out: Path) -> Path:
    """Writes the page, and its figures into a folder of its name beside it.

    Args:
        by_scale: Scale → findings; shown are those that have at least one seed of every row.
        out: The page.

    Raises:
        ValueError: There is no result at all.
    """
    if not any(_is_there(f) for findings in by_scale.values() for f in findings):
        raise ValueError("there is no finished table to write about: run `topkast reproduce all` first")
    folder = out.parent / out.stem
    parts = [_HEAD]
    for name, findings in by_scale.items():
        shown = [f for f in findings if _is_there(f)]
        if shown:
            parts.append(_scale(name, shown, folder))
    replace(out, "\n".join(parts).encode())
    return out


def _is_there(findings: Findings) -> bool:
    """Whether every row has a result: a table that merely shares some with another says nothing."""
    return all(row.label in findings.groups for row in findings.experiment.rows)


def _scale(name: str, shown: Sequence[Findings], folder: Path) -> str:
    pictures = {f.experiment.name: drawing(f) for f in figures.drawable(shown)}
    folder.mkdir(parents=True, exist_ok=True)
    for picture in pictures.values():
        replace(folder / f"{name}-{picture.name}.svg", picture.svg)
    lines = [
        f"## Scale “{name}”",
        "",
        f"{shown[0].scale.about[0].upper()}{shown[0].scale.about[1:]}.",
        f"Machine: {cpu_model() or platform.machine()}. {tally(shown)}",
        "",
        "| claim | verdict | numbers |",
        "|---|---|---|",
    ]
    for findings in shown:
        for verdict in findings.verdicts:
            cells = (f"{verdict.claim.words} ({verdict.claim.place})", verdict.verdict, verdict.numbers)
            lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    for findings in shown:
        lines += ["", *_section(findings, name, folder, findings.experiment.name in pictures)]
    return "\n".join(lines) + "\n"


def _section(findings: Findings, scale: str, folder: Path, has_picture: bool) -> list[str]:
    experiment = findings.experiment
    runs = [run for found in findings.groups.values() for run in found.runs.values()]
    spent = duration(sum(run.seconds_per_step * run.last.step for run in runs))
    seeds = {seed for found in findings.groups.values() for seed in found.runs}
    note = "" if findings.is_whole else " Not all of its runs are finished."
    lines = [
        f"### {experiment.place}: {experiment.title}",
        "",
        f"`topkast reproduce {experiment.name} --scale {scale} --seeds {len(findings.seeds)}`; "
        f"{counted(len(runs), 'run')} with {counted(len(seeds), 'seed')}, "
        f"{spent} of training. {experiment.about}{note}",
        "",
    ]
    if has_picture:
        lines += [f"![{experiment.title}]({folder.name}/{scale}-{experiment.name}.svg)", ""]
    return [*lines, tables.markdown(findings, has_times=experiment.name == _ABOUT_TIME).rstrip()]


def counted(number: int, thing: str) -> str:
    return f"{number} {thing}" if number == 1 else f"{number} {thing}s"
