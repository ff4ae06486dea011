"""The command line as a terminal shows it."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from pathlib import Path

import pytest

from topkast.train.display import fitted

pytest.importorskip("rich", reason="the extra `train` is not installed")


def in_terminal(arguments: list[str], columns: int, folder: Path) -> list[str]:
    """Runs topkast in a terminal of this width; every state of every line that it showed."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 30, columns, 0, 0))
    surroundings = {k: v for k, v in os.environ.items() if k not in ("COLUMNS", "LINES")} | {"TERM": "xterm"}
    process = subprocess.Popen(
        [sys.executable, "-m", "topkast", *arguments],
        stdout=theirs,
        stderr=theirs,
        cwd=folder,
        env=surroundings,
    )
    os.close(theirs)
    shown = b""
    while True:
        try:
            if not (part := os.read(ours, 65536)):
                break
        except OSError:  # the other side is closed
            break
        shown += part
    os.close(ours)
    assert process.wait(timeout=60) == 0
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown.decode())
    return re.split(r"[\r\n]+", plain)


def test_the_live_bar_fits_eighty_columns_with_all_it_tells(tmp_path: Path) -> None:
    small = ["--width=32", "--depth=1", "--heads=2", "--window=16", "--limit=20000", "--engine=masked"]
    run = ["--steps=400", "--evaluate-every=100", "--reference=none", "--no-report", "--out=run"]
    lines = in_terminal(["train", *small, *run], 80, tmp_path)
    assert max(map(len, lines)) <= 80
    bars = [line for line in lines if re.match(r"\d+/400 ", line)]
    assert any(re.search(r"loss \S+ +eval \S+ +\S+ bytes/s +ΔA \S+% +\d+ MB +(\d+|-)", line) for line in bars)
    assert sum(bool(re.match(r" +\d+00  ", line)) for line in lines) == 4  # a line for each evaluation stays


def test_what_does_not_fit_is_left_out_from_the_end() -> None:
    parts = ["loss 1", "held-out 2", "3 MB"]
    assert fitted(parts, 80) == "loss 1  held-out 2  3 MB"
    assert fitted(parts, 22) == "loss 1 held-out 2 3 MB"
    assert fitted(parts, 21) == "loss 1 held-out 2"
    assert fitted(parts, 3) == ""
