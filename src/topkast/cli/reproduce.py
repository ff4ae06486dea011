"""`topkast reproduce`: the paper's tables and figures at this machine's scale, a verdict on each claim."""

from __future__ import annotations

import argparse
import shlex
import shutil
import textwrap
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from topkast.extras import load_matplotlib
from topkast.reproduce.catalogue import EXPERIMENTS, choose
from topkast.reproduce.experiment import Experiment, Findings, find, prepare
from topkast.reproduce.farm import run_all
from topkast.reproduce.pages import verdict_counts, write_document, write_pages
from topkast.reproduce.scales import SCALES, Scale, scale
from topkast.reproduce.tables import dry_run
from topkast.train.session import Stopped

_CONTROL = "no-exploration"


def add_parser(commands: Any) -> None:
    parser = commands.add_parser("reproduce", help="the paper's tables and figures, ours beside theirs")
    parser.add_argument("names", nargs="*", metavar="NAME", help="tables and figures, or all; see --list")
    parser.add_argument("--list", action="store_true", help="list the tables and figures")
    parser.add_argument("--scale", default="tiny", metavar="NAME", help=f"{', '.join(SCALES)} (tiny)")
    parser.add_argument("--seeds", type=int, metavar="N", help="runs of each row (those of the scale)")
    parser.add_argument(
        "--steps", type=int, metavar="N", help="shorten every run to N steps, for a quick test"
    )
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="number of runs at a time (1)")
    parser.add_argument(
        "--out",
        type=Path,
        default=Path("runs/reproduce"),
        metavar="FOLDER",
        help="folder of runs and pages (runs/reproduce)",
    )
    parser.add_argument("--dry-run", action="store_true", help="say what would run and what it takes")
    parser.add_argument(
        "--no-run", action="store_true", help="write pages and verdicts of finished runs only"
    )
    parser.add_argument("--keep-networks", action="store_true", help="keep the checkpoints of finished runs")
    parser.add_argument(
        "--control",
        choices=(_CONTROL,),
        help="run Top-KAST with B = A, to see that claims on exploration then fail",
    )
    parser.add_argument(
        "--document",
        type=Path,
        metavar="FILE",
        help="write all finished results, of all scales, to this Markdown file",
    )
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    if options.list:
        print(_list())
        return 0
    chosen = scale(options.scale)
    if options.steps is not None:
        chosen = chosen.with_steps(_positive(options.steps, 1, "--steps"))
    seeds = range(_positive(options.seeds, chosen.seeds, "--seeds"))
    jobs = _positive(options.jobs, 1, "--jobs")
    if options.document is not None:
        print(f"written: {_document(options)}")
        return 0
    if not options.names:
        raise ValueError("name tables or figures, or all; --list shows what there is")
    experiments = choose(options.names)
    if options.control:
        experiments = [experiment.without_exploration() for experiment in experiments]
    if options.dry_run:
        print(dry_run(experiments, chosen, len(seeds)))
        return 0
    load_matplotlib()  # says what to install before anything is trained
    out = options.out / chosen.name
    code, failed = 0, {}
    if not options.no_run:
        places = prepare(experiments, chosen, seeds, out)
        finished = sum(here.is_finished for here in places)
        print(f"{len(places)} runs, {finished} of them finished before", flush=True)
        more = ["keep"] if options.keep_networks else []
        harvest = run_all(places, jobs=jobs, more=more, say=partial(print, flush=True))
        code, failed = harvest.exit_code, harvest.failed
    pages = out / f"control-{options.control}" if options.control else out
    return _show(experiments, chosen, seeds, out, pages, options, code, failed)


def _show(
    experiments: Sequence[Experiment],
    chosen: Scale,
    seeds: range,
    out: Path,
    pages: Path,
    options: argparse.Namespace,
    code: int,
    failed: dict[str, str],
) -> int:
    findings = [find(experiment, chosen, seeds, out) for experiment in experiments]
    print(_verdicts(findings))
    print(f"page: {write_pages(findings, pages, _command(options))}")
    if code != 0:
        print(f"stopped; the same command goes on: {_command(options)}")
    elif failed:
        names = "; ".join(f"{label}: {why}" for label, why in failed.items())
        raise Stopped(f"{len(failed)} runs failed ({names}); the others are on the page")
    return code


def _document(options: argparse.Namespace) -> Path:
    if options.names or options.dry_run or options.control:
        raise ValueError("--document writes all that is there: it goes with --out and --seeds alone")
    load_matplotlib()
    by_scale = {}
    for one in SCALES.values():
        if options.steps is not None:
            one = one.with_steps(options.steps)
        seeds = range(options.seeds or one.seeds)
        by_scale[one.name] = [find(e, one, seeds, options.out / one.name) for e in EXPERIMENTS.values()]
    return write_document(by_scale, options.document)


def _positive(value: int | None, default: int, flag: str) -> int:
    if value is None:
        return default
    if value < 1:
        raise ValueError(f"{flag} must be at least 1, got {value}")
    return value


def _list() -> str:
    lines = []
    for name, experiment in EXPERIMENTS.items():
        lines.append(f"{name:18} {experiment.place}: {experiment.title}")
    lines.append("")
    lines += [f"--scale {one.name:8} {one.about}" for one in SCALES.values()]
    return "\n".join(line for long in lines for line in _wrapped(long))


def _wrapped(text: str) -> list[str]:
    return textwrap.wrap(text, 100, subsequent_indent=" " * 19) or [""]


def _verdicts(all_findings: Sequence[Findings]) -> str:
    width = max((len(v.verdict) for findings in all_findings for v in findings.verdicts), default=0)
    lines, indent = [], " " * (width + 2)
    columns = max(width + 40, shutil.get_terminal_size((100, 24)).columns)
    for findings in all_findings:
        for verdict in findings.verdicts:
            claim = f"{findings.experiment.name}: {verdict.claim.words}"
            first = f"{verdict.verdict:>{width}}  "
            lines += textwrap.wrap(claim, columns, initial_indent=first, subsequent_indent=indent)
            lines += textwrap.wrap(verdict.numbers, columns, initial_indent=indent, subsequent_indent=indent)
    return "\n".join(["", *lines, verdict_counts(all_findings)])


def _command(options: argparse.Namespace) -> str:
    words = ["topkast", "reproduce", *options.names, "--scale", options.scale]
    jobs = None if options.jobs == 1 else options.jobs
    flags = {"--seeds": options.seeds, "--steps": options.steps, "--jobs": jobs, "--control": options.control}
    for flag, value in flags.items():
        words += [] if value is None else [flag, str(value)]
    return shlex.join([*words, "--out", str(options.out)])
