"""How one of several processes ends."""

from __future__ import annotations

import subprocess
import sys

# What C++ would do at the end of a process is done by Python here: it is not reached.
_ENDS = """
import atexit, os, sys
from topkast.train import workers
atexit.register(os.abort)
print("said", end="")
sys.stderr.write("warned")
{first}
workers.leave(143)
"""


def _run(first: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", _ENDS.format(first=first)], capture_output=True, text=True, timeout=120
    )


def test_it_leaves_with_its_code_and_all_that_it_has_said() -> None:
    ended = _run()
    assert ended.returncode == 143, ended
    assert (ended.stdout, ended.stderr) == ("said", "warned")


def test_it_leaves_where_nobody_listens() -> None:
    ended = _run("os.close(1)")
    assert ended.returncode == 143, ended
