"""Runs the tests that reach the compiled core on the build in the given folder; `make sanitize` calls it.

Leaks are not looked for: Python and torch keep much until the end, on purpose.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest


def main(folder: Path) -> int:
    # The installed package comes first otherwise: an editable install finds it with a finder of its own.
    sys.meta_path = [f for f in sys.meta_path if "ScikitBuild" not in type(f).__name__]
    sys.path.insert(0, str(folder.resolve()))
    from topkast.kernels import _native

    if not Path(_native.__file__).is_relative_to(folder.resolve()):
        print(f"the tests would run on {_native.__file__}, not on the build in {folder}", file=sys.stderr)
        return 2
    here = Path(__file__).parent
    paths = [
        here / "kernels",
        here / "nn",
        here / "core" / "test_floor.py",
        here / "core" / "test_select.py",
        here / "core" / "test_refresh.py",
        here / "core" / "test_two_clocks.py",
        here / "core" / "test_implicit.py",
    ]
    return pytest.main(["-q", "-p", "no:cacheprovider", "--timeout", "900", *map(str, paths)])


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
