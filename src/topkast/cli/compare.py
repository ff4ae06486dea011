"""`topkast compare`: several methods or sparsities on the same task and seeds, and one page of them."""

from __future__ import annotations

import argparse
import textwrap
from pathlib import Path
from typing import Any

from topkast.bench.plot import load_matplotlib
from topkast.cli.options import add_options, add_preset, configuration, given
from topkast.report import read_run, write_comparison
from topkast.report.groups import Group, group
from topkast.report.words import MISSING, duration, number, size
from topkast.reproduce import contest
from topkast.text import padded
from topkast.train.config import TASKS, Config

DEFAULT = ("dense", "static:0.9", "rigl:0.9", "topkast:0.9/0.8")
# What the contenders and --seeds decide.
_DECIDED = {"task", "method", "forward_sparsity", "backward_sparsity", "seed", "reference"}


def add_parser(commands: Any) -> None:
    parser = commands.add_parser("compare", help="train in several ways and compare")
    parser.add_argument(
        "contenders",
        nargs="*",
        metavar="METHOD[:FORWARD[/BACKWARD]]",
        help=f"such as {' '.join(DEFAULT)}, which is the default",
    )
    parser.add_argument("--task", choices=TASKS, help="text (default) or images")
    parser.add_argument("--seeds", default="0", metavar="N,N", help="each contender runs with each (0)")
    parser.add_argument("--out", type=Path, metavar="FOLDER", help="of all runs and the page (runs/…)")
    add_preset(parser)
    parser.add_argument("--resume", type=Path, metavar="FOLDER", help="go on with a comparison")
    parser.add_argument("--quiet", action="store_true", help="show nothing but the end")
    add_options(parser, without=_DECIDED)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    load_matplotlib()  # says what to install before anything is trained
    values = given(options)
    if options.resume is not None:
        if values or options.contenders or options.config or options.preset or options.out:
            raise ValueError("--resume takes everything from the comparison: give no other option with it")
        out = options.resume
        contest.names(out)
    else:
        base = configuration(options)
        configs = contest.plan(base, options.contenders or DEFAULT, _seeds(options.seeds))
        out = options.out or _free_folder(base)
        contest.create(out, configs)
    if (code := contest.go(out, quiet=options.quiet)) != 0:
        print(f"stopped, with a checkpoint; go on with: topkast compare --resume {out}")
        return code
    runs = [read_run(out / name) for name in contest.names(out)]
    print(_summary(group(runs), runs[0].quality_name))
    print(f"report: {write_comparison(runs, out / 'comparison.html')}")
    return 0


def _seeds(text: str) -> list[int]:
    try:
        seeds = [int(part) for part in text.split(",")]
    except ValueError:
        seeds = []
    if not seeds or min(seeds) < 0:
        raise ValueError(f"--seeds must be whole numbers from 0 on with commas between them, got {text!r}")
    return seeds


def _free_folder(base: Config) -> Path:
    number = 1
    while (path := Path("runs") / f"compare-{base.data.task}-{number}").exists():
        number += 1
    return path


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
