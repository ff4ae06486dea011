"""`topkast COMMAND …`."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib.metadata import version
from typing import NoReturn

from topkast.cli import bench, compare, info, look, plan, reproduce, train, tune, use
from topkast.cli.flags import in_flags
from topkast.cli.parser import Parser
from topkast.kernels.machine import keep_freed_memory
from topkast.train import workers
from topkast.train.session import Stopped

_COMMANDS = (
    train.add_parser,
    compare.add_parser,
    compare.add_report,
    tune.add_parser,
    use.add_eval,
    use.add_generate,
    use.add_export,
    look.add_parser,
    plan.add_parser,
    reproduce.add_parser,
    bench.add_parser,
    info.add_parser,
)


# What the shell says of a process that SIGPIPE has ended.
_PIPE_CLOSED = 141


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command.

    Errors of the caller are one line on standard error and exit code 2; a run that cannot go on is one
    line and exit code 1. With --debug both come with their traceback.
    """
    parser = Parser(prog="topkast", description="Always-sparse training (Top-KAST).")
    parser.add_argument("--version", action="version", version=f"topkast {version('topkast')}")
    parser.add_argument("--debug", action="store_true", help="show the traceback of an error")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    for add in _COMMANDS:
        add(commands)
    options = parser.parse(arguments)
    if options.command is None:
        parser.print_help()
        return 0
    keep_freed_memory()
    try:
        if workers.are_several() and options.command != "train":
            raise ValueError("only `train` runs as several processes; start this one without torchrun")
        return options.run(options) or 0
    except workers.FailedElsewhere:
        return 2
    except BrokenPipeError:  # nobody reads on, as in `topkast … | head`
        raise
    except (ValueError, TypeError, OSError, ImportError, Stopped) as error:
        if options.debug:
            raise
        if workers.is_first() or not isinstance(error, Stopped):  # which all ranks are told at once
            message = in_flags(str(error), options)
            print(f"topkast {options.command}{workers.label()}: {message}", file=sys.stderr)
        return 1 if isinstance(error, Stopped) else 2


def _code() -> int:
    """Of the command; --help and mistakes of the command line end it early."""
    try:
        return main()
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else 0


def process() -> NoReturn:
    """The whole of a process: runs the command it was started with, and ends."""
    try:
        code = _code()
        sys.stdout.flush()
    except BrokenPipeError:
        # What is left in the buffer has no reader: Python would complain of it at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = _PIPE_CLOSED
    if workers.are_several():
        workers.leave(code)
    sys.exit(code)


if __name__ == "__main__":
    process()
