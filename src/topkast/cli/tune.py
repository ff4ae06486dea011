"""`topkast tune`: the best learning rate of each way of training."""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path
from typing import Any

from topkast.cli.compare import DECIDED, DEFAULT, add_contenders, parse_seeds, take_task
from topkast.cli.flags import add_options, add_preset, configuration
from topkast.extras import load_matplotlib
from topkast.reproduce import tuning
from topkast.text import narrow
from topkast.train.resolve import make_task
from topkast.train.session import Stopped


def add_parser(commands: Any) -> None:
    parser = commands.add_parser("tune", help="find the best learning rate of each method")
    add_contenders(parser)
    parser.add_argument(
        "--factor", type=float, default=2.0, metavar="F", help="factor from one rate to the next (2)"
    )
    parser.add_argument(
        "--most", type=int, default=7, metavar="N", help="try at most N rates for a contender (7)"
    )
    parser.add_argument(
        "--seeds", default="0", metavar="N,N", help="search with the first seed, run all at the best rate (0)"
    )
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="number of runs at a time (1)")
    parser.add_argument(
        "--out",
        type=Path,
        default=Path("runs/tune"),
        metavar="FOLDER",
        help="folder of runs and results; what it has is not run again (runs/tune)",
    )
    add_preset(parser)
    add_options(parser, without=DECIDED)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    load_matplotlib()  # says what to install before anything is trained
    if options.jobs < 1:
        raise ValueError(f"--jobs must be at least 1, got {options.jobs}")
    take_task(options)
    base = configuration(options)
    first = make_task(base).lr if base.train.lr is None else base.train.lr
    seeds = parse_seeds(options.seeds)
    search = tuning.Search(base, first, options.factor, options.most, seeds, options.out)
    tuned, harvest = tuning.tune(
        search, options.contenders or DEFAULT, jobs=options.jobs, say=partial(print, flush=True)
    )
    if harvest.exit_code != 0:
        print("stopped, with checkpoints; the same command goes on")
        return harvest.exit_code
    *figures, _ = zip(*(rows := tuning.table(search, tuned)), strict=True)
    print("\n".join(narrow(list(zip(*figures, strict=True)))))
    for label, *_, note in rows:
        if note:
            print(f"{label}: the best rate is {note}")
    print(f"figure: {tuning.write(search, tuned)}; numbers: {options.out / tuning.RESULT}")
    if harvest.failed:
        label, why = next(iter(harvest.failed.items()))
        raise Stopped(f"{len(harvest.failed)} runs failed, {label} first: {why}; they count as worst")
    return 0
