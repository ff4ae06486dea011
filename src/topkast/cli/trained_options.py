"""What all commands take that use a trained network."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import torch

from topkast.train import trained
from topkast.train.config import ENGINES
from topkast.train.trained import Trained


def add_run(parser: argparse.ArgumentParser, *, engine: bool = True) -> None:
    parser.add_argument("folder", type=Path, metavar="RUN", help="folder of a run")
    parser.add_argument(
        "--checkpoint", default="last", metavar="NAME", help="last (default), best, or a name"
    )
    if engine:
        parser.add_argument("--engine", choices=ENGINES, help="in place of the run's own")
        parser.add_argument("--threads", type=int, metavar="N", help="of the processor (all)")


def load_run(options: argparse.Namespace) -> Trained:
    """The network of the run; what must be known of it goes to standard error."""
    threads = getattr(options, "threads", None)
    if threads is not None:
        if threads < 1:
            raise ValueError(f"--threads must be at least 1, got {threads}")
        torch.set_num_threads(threads)
    loaded = trained.load(options.folder, options.checkpoint, engine=getattr(options, "engine", None))
    for note in loaded.notes:
        print(f"topkast {options.command}: {note}", file=sys.stderr)
    return loaded
