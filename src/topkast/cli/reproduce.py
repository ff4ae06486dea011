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
from topkast.reproduce import tuned_rates
from topkast.reproduce.archive import Archive
from topkast.reproduce.calibration import find_rates
from topkast.reproduce.catalogue import EXPERIMENTS, choose
from topkast.reproduce.experiment import Experiment, Findings, find, in_archive, in_folders, prepare
from topkast.reproduce.farm import Harvest, Measured, Place, run_all
from topkast.reproduce.pages import verdict_counts, write_document, write_pages
from topkast.reproduce.recipes import CONTROLS
from topkast.reproduce.scales import SCALES, Scale, scale
from topkast.reproduce.tables import dry_run
from topkast.train.session import Stopped


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
        choices=tuple(CONTROLS),
        help="run Top-KAST with B = A, or at 30 times its rate, or all on shuffled labels, to see that "
        "claims then fail or are not counted",
    )
    parser.add_argument(
        "--document",
        type=Path,
        metavar="FILE",
        help="write all kept results, of all scales, to this Markdown file",
    )
    parser.add_argument(
        "--find-rates",
        type=Path,
        metavar="FILE",
        help="look for the learning rates of all rows on validation data, and keep them in this file",
    )
    parser.add_argument(
        "--results",
        type=Path,
        metavar="FOLDER",
        help="keep results here as JSON lines, and do not run again what is there (with --document: the "
        "folder of its name beside it)",
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
    if options.control and options.results is not None:
        raise ValueError("--control spoils runs on purpose: leave out --results, which keeps them")
    experiments = choose(options.names)
    if options.control:
        experiments = [experiment.changed(CONTROLS[options.control]) for experiment in experiments]
    if options.dry_run:
        print(dry_run(experiments, chosen, len(seeds)))
        return 0
    out = options.out / chosen.name
    if options.find_rates is not None:
        return _find_rates(experiments, chosen, out, jobs, options.find_rates)
    load_matplotlib()  # says what to install before anything is trained
    archive = None if options.results is None else Archive.read(options.results, chosen.name)
    harvest = Harvest()
    if not options.no_run:
        harvest = _train(prepare(experiments, chosen, seeds, out), archive, jobs, options.keep_networks)
    look = in_folders(chosen, out, archive)
    findings = [find(experiment, chosen, seeds, look) for experiment in experiments]
    pages = out / f"control-{options.control}" if options.control else out
    return _show(findings, pages, options, harvest)


def _find_rates(experiments: Sequence[Experiment], chosen: Scale, out: Path, jobs: int, file: Path) -> int:
    harvest = find_rates(
        experiments,
        chosen,
        out,
        tuned_rates.read(file),
        jobs=jobs,
        say=partial(print, flush=True),
        keep=partial(tuned_rates.write, file),
    )
    print(f"written: {file}" if harvest.exit_code == 0 else "stopped; the same command goes on")
    return harvest.exit_code


def _train(places: Sequence[Measured], archive: Archive | None, jobs: int, keeps: bool) -> Harvest:
    """Finishes what is not finished and not in the archive, and keeps it there."""

    def done(here: Place) -> None:
        if archive is not None and isinstance(here, Measured):
            archive.keep(here)

    for here in places:
        done(here)  # those that were finished without an archive
    missing = [p for p in places if archive is None or p.folder.name not in archive.runs]
    finished = len(places) - sum(not p.is_finished for p in missing)
    print(f"{len(places)} runs, {finished} of them finished before", flush=True)
    return run_all(
        missing, jobs=jobs, more=["keep"] if keeps else [], say=partial(print, flush=True), done=done
    )


def _show(findings: Sequence[Findings], pages: Path, options: argparse.Namespace, harvest: Harvest) -> int:
    print(_verdicts(findings))
    print(f"page: {write_pages(findings, pages, _command(options))}")
    failed = harvest.failed
    if harvest.exit_code != 0:
        print(f"stopped; the same command goes on: {_command(options)}")
    elif failed:
        names = "; ".join(f"{label}: {why}" for label, why in failed.items())
        raise Stopped(f"{len(failed)} runs failed ({names}); the others are on the page")
    return harvest.exit_code


def _document(options: argparse.Namespace) -> Path:
    if options.names or options.dry_run or options.control:
        raise ValueError("--document writes all that is there: it goes with --results and --seeds alone")
    load_matplotlib()
    page: Path = options.document
    results = page.parent / page.stem if options.results is None else options.results
    by_scale = {}
    for one in SCALES.values():
        if options.steps is not None:
            one = one.with_steps(options.steps)
        seeds, look = range(options.seeds or one.seeds), in_archive(one, Archive.read(results, one.name))
        by_scale[one.name] = [find(experiment, one, seeds, look) for experiment in EXPERIMENTS.values()]
    return write_document(by_scale, page)


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
    results = [] if options.results is None else ["--results", str(options.results)]
    return shlex.join([*words, "--out", str(options.out), *results])
