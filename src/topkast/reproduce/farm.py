"""Many runs, a process each: what is not finished begins or goes on, one run at a time or several.

In a process of its own each run has the memory, the generators and the threads that it would have alone, and
one that dies takes no other with it. Comparisons keep their runs by name:

    OUT/configs/NAME.toml      what it is told
        NAME/                  its run folder

Experiments keep theirs by the hash of what they are told. Two experiments with a row in common share the run,
and so do two commands:

    OUT/runs/HASH/config.toml  what it is told
        HASH/run/              its run folder
        HASH/result.json       what was measured at its end, once it is finished
        HASH/failed.txt        why it could not be finished, if so
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from topkast.store.files import replace
from topkast.store.record import METRICS, read_events
from topkast.store.run import End
from topkast.train.config import Config
from topkast.train.folder import MARKER
from topkast.train.workers import Interrupt

_HASHED = 16


@dataclass(frozen=True)
class Place:
    """Where one run is kept, which is trained by `topkast train` and shown as it goes.

    Attributes:
        label: For people.
        told: The file of its options.
        run: Its run folder.
    """

    label: str
    told: Path
    run: Path

    @property
    def is_begun(self) -> bool:
        return (self.run / MARKER).is_file()

    @property
    def is_finished(self) -> bool:
        """Whether it needs no more process."""
        record = self.run / METRICS
        return record.is_file() and any(isinstance(e, End) and e.stopped is None for e in read_events(record))

    def is_good(self, code: int) -> bool:
        """Whether a process that ended so has done its work; one whose time is over has."""
        return code == 0

    @property
    def failure(self) -> str | None:
        """What the process has left to say of its failure."""
        return None

    @property
    def quality(self) -> float | None:
        """What was measured when it had ended."""
        return None

    def prepare(self, config: Config) -> None:
        """Writes down what the run is told, if it is not yet."""
        self.told.parent.mkdir(parents=True, exist_ok=True)
        if not self.told.is_file():
            replace(self.told, config.to_toml().encode())

    def start(self, threads: int, more: Sequence[str]) -> subprocess.Popen[bytes]:
        """Its process, from its beginning or from its last checkpoint."""
        told = ["--resume", self.run] if self.is_begun else ["--config", self.told, "--out", self.run]
        return _process(["topkast", "train", *map(str, told), "--no-report", *more])


@dataclass(frozen=True)
class Measured(Place):
    """Where a run is kept that is tested at its end, by `topkast.reproduce.worker`."""

    @classmethod
    def at(cls, folder: Path, label: str = "") -> Measured:
        return cls(label, folder / "config.toml", folder / "run")

    @property
    def folder(self) -> Path:
        return self.told.parent

    @property
    def is_finished(self) -> bool:
        return self.result() is not None

    def is_good(self, code: int) -> bool:
        return code == 0 and self.is_finished

    @property
    def failure(self) -> str | None:
        path = self.folder / "failed.txt"
        return path.read_text().strip() if path.is_file() and not self.is_finished else None

    @property
    def quality(self) -> float | None:
        result = self.result()
        return None if result is None else result["quality"]

    def result(self) -> dict[str, Any] | None:
        """What came of the run; None if it is not finished, or the file is damaged."""
        try:
            content = json.loads((self.folder / "result.json").read_bytes())
        except (OSError, ValueError, RecursionError):
            return None
        is_good = isinstance(content, dict) and isinstance(content.get("quality"), int | float)
        return content if is_good else None

    def keep(self, result: dict[str, Any]) -> None:
        """Writes the result down, whole or not at all."""
        replace(self.folder / "result.json", (json.dumps(result, indent=1) + "\n").encode())

    def fail(self, why: str) -> None:
        replace(self.folder / "failed.txt", why.encode())

    def start(self, threads: int, more: Sequence[str]) -> subprocess.Popen[bytes]:
        command = ["topkast.reproduce.worker", str(self.folder), *more]
        return _process(
            command, stdout=subprocess.DEVNULL, env={**os.environ, "OMP_NUM_THREADS": str(threads)}
        )


def place(out: Path, config: Config, label: str = "") -> Measured:
    """Where the run of a configuration is. The number of threads is no part of what it is."""
    text = config.with_values({"train": {"threads": 1}}).to_toml()
    return Measured.at(out / "runs" / hashlib.sha256(text.encode()).hexdigest()[:_HASHED], label)


def _process(
    module: Sequence[str], stdout: int | None = None, env: dict[str, str] | None = None
) -> subprocess.Popen[bytes]:
    # In a group of its own: a signal reaches it once, from here, and not from the terminal as well.
    command = [sys.executable, "-m", *module]
    return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=stdout, env=env, process_group=0)


@dataclass
class Harvest:
    """How it went.

    Attributes:
        done: Runs that came to their end now.
        failed: Label → why.
        exit_code: 0, or what the shell expects after a signal.
    """

    done: int = 0
    failed: dict[str, str] = field(default_factory=dict)
    exit_code: int = 0


def run_all(
    places: Sequence[Place],
    *,
    jobs: int = 1,
    more: Sequence[str] = (),
    say: Callable[[str], None] = lambda _: None,
    done: Callable[[Place], None] = lambda _: None,
    is_strict: bool = False,
) -> Harvest:
    """Finishes all runs; those that are finished are left as they are. A signal stops them with checkpoints.

    Args:
        places: Of the runs; each once.
        jobs: Processes at a time. Runs that are measured have their share of the processor's threads.
        more: Arguments for all processes.
        say: Told of each run that ended.
        done: Called with each run that is finished now.
        is_strict: Whether no other run begins once one has failed.
    """
    harvest, waiting, going = Harvest(), [p for p in places if not p.is_finished], []
    total, started = len(waiting), time.monotonic()
    threads = max(1, (os.cpu_count() or 1) // jobs)
    with Interrupt() as interrupt:
        try:
            while waiting or going:
                while waiting and len(going) < jobs and interrupt.signal is None:
                    here = waiting.pop(0)
                    going.append(_Going(here, here.start(threads, more)))
                ended = [g for g in going if g.process.poll() is not None]
                for one in ended:
                    going.remove(one)
                    one.count(harvest)
                    if one.place.is_finished:
                        done(one.place)
                    minutes = (time.monotonic() - started) / 60
                    left = f"{harvest.done + len(harvest.failed)} of {total}, {minutes:.1f} min"
                    say(f"[{left}] {one.place.label}: {one.said()}")
                if interrupt.signal is not None or (is_strict and harvest.failed):
                    waiting.clear()
                if interrupt.signal is not None:
                    for one in going:
                        one.tell(interrupt.signal)
                if not ended:
                    time.sleep(0.1)
        except BaseException:
            for one in going:
                one.process.kill()
                one.process.wait()
            raise
        harvest.exit_code = 0 if interrupt.signal is None else interrupt.exit_code
    return harvest


@dataclass
class _Going:
    place: Place
    process: subprocess.Popen[bytes]
    is_told: bool = False

    def tell(self, signal: int) -> None:
        if not self.is_told:
            self.process.send_signal(signal)
            self.is_told = True

    def count(self, harvest: Harvest) -> None:
        if self.place.is_good(self.process.returncode):
            harvest.done += 1
        elif not self.is_told:
            harvest.failed[self.place.label] = self.why()

    def why(self) -> str:
        code = self.process.returncode
        ended = signal.Signals(-code).name if code < 0 else f"exit code {code}"
        return self.place.failure or f"ended with {ended}"

    def said(self) -> str:
        if self.place.is_good(self.process.returncode):
            return "done" if self.place.quality is None else f"{self.place.quality:.4g}"
        return "stopped, with a checkpoint" if self.is_told else f"failed: {self.why()}"
