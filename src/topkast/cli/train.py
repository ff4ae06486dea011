"""`topkast train`: one command from data to a sparse network and a report, through interruptions."""

from __future__ import annotations

import argparse
import math
import shlex
import textwrap
from pathlib import Path
from typing import Any

from topkast.cli.flags import add_options, add_preset, configuration, free_folder, resumed_values
from topkast.core.ranks import Ranks
from topkast.extras import load_matplotlib
from topkast.report import write_report
from topkast.report.summary import quality_at, shortest
from topkast.store.record import read_run
from topkast.store.run import Run
from topkast.text import duration, measured, narrow
from topkast.train import job, workers
from topkast.train.display import Display, make_display
from topkast.train.dry_run import dry_run
from topkast.train.folder import MARKER
from topkast.train.job import Outcome
from topkast.train.sections import TASKS


def add_parser(commands: Any) -> None:
    parser = commands.add_parser("train", help="train a network, always sparse")
    parser.add_argument("task", nargs="?", choices=TASKS, metavar="task", help="text (default) or images")
    add_options(parser, more=_add_run)
    parser.set_defaults(run=run)


def _add_run(group: Any) -> None:
    group.add_argument("--out", type=Path, metavar="RUN", help="folder of the run (runs/…)")
    add_preset(group)
    group.add_argument("--resume", type=Path, metavar="RUN", help="go on with a run; --steps N extends it")
    group.add_argument(
        "--from", dest="weights_from", metavar="RUN", help="start from the weights, sets and options of a run"
    )
    group.add_argument("--dry-run", action="store_true", help="say what the run would take, without training")
    group.add_argument("--no-report", action="store_true", help="print no table and write no page at the end")
    group.add_argument("--quiet", action="store_true", help="show only the result")


def run(options: argparse.Namespace) -> int:
    changes = {} if options.resume is None else resumed_values(options)
    if options.dry_run and options.resume is None:
        if workers.is_first():
            print(dry_run(configuration(options)))
        return 0
    if workers.may_be_restarted() and options.out is None and options.resume is None:
        raise ValueError("a run that torchrun may restart needs --out, so that it finds its folder again")
    with workers.together() as ranks:
        outcome = _train(options, changes, ranks)
    return _tell(outcome, options) if workers.is_first() else outcome.exit_code


def _train(options: argparse.Namespace, changes: dict[str, dict[str, Any]], ranks: Ranks | None) -> Outcome:
    display = make_display(quiet=options.quiet) if workers.is_first() else Display()
    path = options.resume
    if path is None and workers.were_restarted() and (options.out / MARKER).is_file():
        path = options.out
    if ranks is not None:
        path = ranks.from_first(path)
    if path is not None:
        display.note(f"going on with {path}")
        return job.resume(path, display, ranks, changes)
    config = configuration(options)
    out = options.out or free_folder(f"{config.data.task}-{config.method.method}")
    display.note(f"run folder: {out}" + ("" if ranks is None else f", {ranks.count} ranks"))
    return job.start(config, out, display, ranks)


def _tell(outcome: Outcome, options: argparse.Namespace) -> int:
    """What came of it."""
    if outcome.exit_code == 0 and not options.no_report:  # to its end, or to that of its time
        record = read_run(outcome.folder)
        print(_summary(record))
        print(_report(record))
        if outcome.is_finished:
            print("\n".join(_next_steps(record)))
    if not outcome.is_finished:
        print(f"stopped, with a checkpoint; go on with: topkast train --resume {outcome.folder}")
    return outcome.exit_code


def _summary(run: Run) -> str:
    """Network and references, a row each: at equal steps and at equal time."""
    held = math.nan if run.bytes is None else run.bytes.sparse
    rows = [(run.name, run.last.quality, run.points, run.used, run.seconds_per_step, held)]
    rows += [
        (other.name, other.quality, other.points, other.parameters, other.seconds_per_step, other.bytes)
        for other in run.references.values()
    ]
    time = shortest([points for _, _, points, *_ in rows])
    name = run.quality_name
    cells = [("", name, f"after {duration(time)}", "parameters", "ms/step", "MB")]
    for label, quality, points, parameters, seconds, num_bytes in rows:
        cells.append(
            (
                label,
                "not finite" if math.isnan(quality) else measured(quality, name),
                "not yet" if math.isnan(then := quality_at(points, time)) else measured(then, name),
                f"{parameters:,.0f}",
                f"{1000 * seconds:.1f}",
                "" if math.isnan(num_bytes) else f"{num_bytes / 1e6:.2f}",
            )
        )
    lines = ["", *narrow(cells)]
    better = "higher" if run.higher_is_better else "lower"
    note = (
        f"({name} on held-out data, {better} is better, at the end of all steps and after the time that the "
        "fastest took for them; parameters in use; MB of all that is trained)"
    )
    return "\n".join([*lines, *textwrap.wrap(note, 80)])


def _next_steps(run: Run) -> list[str]:
    """What can be done with the network, a line each."""
    folder = shlex.quote(str(run.folder))
    steps = (
        {f"topkast export {folder} --format compressed": "a file of what is in use"} if run.is_sparse else {}
    )
    if run.task == "text":
        steps = {f"topkast generate {folder}": "text that it writes", **steps}
    else:
        steps = {f"topkast eval {folder}": "all held-out data, and speed", **steps}
    width = max(map(len, steps))
    return ["next:", *(f"  {command:{width}}  # {what}" for command, what in steps.items())]


def _report(run: Run) -> str:
    """Makes the page, where figures can be drawn."""
    try:
        load_matplotlib()
    except ImportError as error:
        return f"no report: {error}; then `topkast report {run.folder}` makes it"
    return f"report: {write_report(run)}"
