"""`topkast export`: a trained network as a file for others."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from topkast.cli.trained_options import add_run, load_run
from topkast.train.export_forms import FORMS, SUFFIXES, export


def add_parser(commands: Any) -> None:
    parser = commands.add_parser("export", help="write a trained network to a file")
    add_run(parser, engine=False)
    parser.add_argument(
        "--format",
        choices=tuple(FORMS),
        default="safetensors",
        help="dense with zeros (safetensors, state_dict, onnx), or compressed: what is in use alone",
    )
    parser.add_argument("--out", type=Path, metavar="FILE", help="the file (RUN/model.…)")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> None:
    trained = load_run(options)
    out = options.out or options.folder / f"model{SUFFIXES[options.format]}"
    what = export(trained, options.format, out)
    print(f"{out}: {what} ({out.stat().st_size / 1e6:.2f} MB, step {trained.step:,})")
