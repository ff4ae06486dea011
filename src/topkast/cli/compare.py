"""`topkast compare` and `topkast report`: several ways of training beside each other, and pages of runs."""

from __future__ import annotations

import argparse
import os
import textwrap
from pathlib import Path
from typing import Any

from topkast.cli.flags import add_options, add_preset, check_resumed, configuration, free_folder
from topkast.extras import load_matplotlib
from topkast.report import read_run, write_comparison, write_report
from topkast.report.groups import Group, group
from topkast.reproduce import contest
from topkast.text import MISSING, duration, number, padded, size
from topkast.train.sections import TASKS

_CONTENDER = "METHOD[:FORWARD[/BACKWARD]][,OPTION=VALUE]"
DEFAULT = ("dense", "static:0.9", "rigl:0.9", "topkast:0.9/0.8")
# What the contenders and --seeds decide.
DECIDED = {"task", "method", "forward_sparsity", "backward_sparsity", "seed", "reference"}


def add_parser(commands: Any) -> None:
    parser = commands.add_parser("compare", help="train in several ways and compare")
    add_contenders(parser)
    parser.add_argument("--seeds", default="0", metavar="N,N", help="seeds to train each contender with (0)")
    parser.add_argument("--out", type=Path, metavar="FOLDER", help="folder of all runs and the page (runs/…)")
    add_preset(parser)
    parser.add_argument("--resume", type=Path, metavar="FOLDER", help="go on with a comparison")
    parser.add_argument("--quiet", action="store_true", help="show only the result")
    add_options(parser, without=DECIDED)
    parser.set_defaults(run=run)


def add_contenders(parser: argparse.ArgumentParser) -> None:
    """Adds what is trained, and on which task."""
    parser.add_argument(
        "contenders",
        nargs="*",
        metavar=_CONTENDER,
        help="text or images, then ways to train such as "
        f"{' '.join(DEFAULT)}, which is the default; OPTION is one of `train`",
    )
    parser.add_argument("--task", choices=TASKS, help="text (default) or images; may also come first")


def take_task(options: argparse.Namespace) -> None:
    """Takes a task from before the contenders, as `topkast train` has it.

    Raises:
        ValueError: --task says another.
    """
    if not options.contenders or options.contenders[0] not in TASKS:
        return
    task = options.contenders.pop(0)
    if options.task not in (None, task):
        raise ValueError(f"--task is {options.task}, but {task} comes before the contenders: give one")
    options.task = task


def run(options: argparse.Namespace) -> int:
    load_matplotlib()  # says what to install before anything is trained
    take_task(options)
    if options.resume is not None:
        check_resumed(options, "comparison", options.contenders)
        out = options.resume
        contest.names(out)
    else:
        base = configuration(options)
        configs = contest.plan(base, options.contenders or DEFAULT, parse_seeds(options.seeds))
        out = options.out or free_folder(f"compare-{base.data.task}")
        contest.create(out, configs)
    if (code := contest.go(out, quiet=options.quiet)) != 0:
        print(f"stopped, with a checkpoint; go on with: topkast compare --resume {out}")
        return code
    runs = [read_run(out / name) for name in contest.names(out)]
    print(_summary(group(runs), runs[0].quality_name))
    print(f"report: {write_comparison(runs, out / 'comparison.html')}")
    return 0


def parse_seeds(text: str) -> list[int]:
    try:
        seeds = [int(part) for part in text.split(",")]
    except ValueError:
        seeds = []
    if not seeds or min(seeds) < 0:
        raise ValueError(f"--seeds must be whole numbers from 0 on with commas between them, got {text!r}")
    return seeds


def _summary(groups: list[Group], quality_name: str) -> str:
    """A table that 80 columns hold."""
    widths = (22, 13, 10, 6, 8, 7, 7)
    rows = [("", quality_name, "parameters", "FLOPs", "step", "bytes", "peak"), *map(_cells, groups)]
    lines = [padded(row, widths, gap=" ") for row in rows]
    note = (
        f"({quality_name} on held-out data, with the standard deviation over seeds; parameters in use; FLOPs "
        "against dense; bytes of all that is trained; peak memory of the process)"
    )
    return "\n".join(["", *lines, *textwrap.wrap(note, 80)])


def _cells(together: Group) -> tuple[str, ...]:
    run = together.first
    deviation = f" ± {together.deviation:.2g}" if len(together.runs) > 1 else ""
    return (
        together.name,
        number(together.mean) + deviation,
        f"{run.parameters['used']:,.0f}",
        f"{run.flops_per_step['sparse'] / run.flops_per_step['dense']:.1%}",
        duration(run.seconds_per_step),
        MISSING if run.bytes is None else size(run.bytes.sparse),
        MISSING if run.end is None else size(run.end.peak_rss),
    )


def add_report(commands: Any) -> None:
    parser = commands.add_parser("report", help="make a page with figures of a run, or compare several")
    parser.add_argument(
        "runs", nargs="+", type=Path, metavar="RUN", help="folder of a run; several to compare"
    )
    default = "RUN/report.html; of several, comparison.html in the folder they share"
    parser.add_argument("--out", type=Path, metavar="FILE", help=f"the page ({default})")
    parser.set_defaults(run=run_report)


def run_report(options: argparse.Namespace) -> None:
    load_matplotlib()  # says what to install before anything is read
    runs = [read_run(folder) for folder in options.runs]
    if len(runs) == 1:
        print(write_report(runs[0], options.out))
        return
    out = options.out or _shared_folder(options.runs) / "comparison.html"
    print(write_comparison(runs, out))


def _shared_folder(folders: list[Path]) -> Path:
    """The nearest folder that all of them are in, as the caller would write it."""
    shared = Path(os.path.commonpath([folder.resolve().parent for folder in folders]))
    here = Path.cwd()
    return shared.relative_to(here) if shared.is_relative_to(here) else shared
