"""`topkast report`: the page and the figures of a run, or of several beside each other."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any

from topkast.extras import load_matplotlib
from topkast.report import read_run, write_comparison, write_report


def add_parser(commands: Any) -> None:
    parser = commands.add_parser("report", help="make a page with figures of a run, or compare several")
    parser.add_argument(
        "runs", nargs="+", type=Path, metavar="RUN", help="folder of a run; several to compare"
    )
    default = "RUN/report.html; of several, comparison.html in the folder they share"
    parser.add_argument("--out", type=Path, metavar="FILE", help=f"the page ({default})")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> None:
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
