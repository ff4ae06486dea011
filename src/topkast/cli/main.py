"""`topkast COMMAND …`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from topkast.cli import bench, plan, report, train
from topkast.kernels.memory import keep_freed_memory


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command. Errors of the caller are one line on standard error and exit code 2."""
    parser = argparse.ArgumentParser(prog="topkast", description="Always-sparse training (Top-KAST).")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for command in (train, report, bench, plan):
        command.add_parser(commands)
    options = parser.parse_args(arguments)
    keep_freed_memory()
    try:
        options.run(options)
    except (ValueError, TypeError, OSError, ImportError) as error:
        print(f"topkast {options.command}: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
