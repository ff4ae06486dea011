"""Runs what is not finished, one process each, one after another or several at a time."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from topkast.reproduce.cache import Place
from topkast.train.interrupt import Interrupt


@dataclass(frozen=True)
class Wanted:
    """A run that a row needs.

    Attributes:
        label: For people.
        place: Where it is.
    """

    label: str
    place: Place


@dataclass
class Tally:
    """How it went.

    Attributes:
        done: Runs finished now.
        failed: Label → why.
        exit_code: 0, or what the shell expects after a signal.
    """

    done: int = 0
    failed: dict[str, str] = field(default_factory=dict)
    exit_code: int = 0


def run_all(wanted: Sequence[Wanted], *, jobs: int, say: Callable[[str], None], keeps: bool = False) -> Tally:
    """Finishes all runs; those that are finished are left as they are. A signal stops them with checkpoints.

    Args:
        wanted: The runs; each place once.
        jobs: Processes at a time. Each has its share of the processor's threads.
        say: Told of each run that ended.
        keeps: Whether checkpoints stay.
    """
    tally, waiting, going = Tally(), [w for w in wanted if not w.place.is_finished], []
    total, started = len(waiting), time.monotonic()
    threads = max(1, (os.cpu_count() or 1) // jobs)
    with Interrupt() as interrupt:
        try:
            while waiting or going:
                while waiting and len(going) < jobs and interrupt.signal is None:
                    going.append(_Going.start(waiting.pop(0), threads, keeps))
                ended = [g for g in going if g.process.poll() is not None]
                for one in ended:
                    going.remove(one)
                    _count(one, tally)
                    left = f"{tally.done + len(tally.failed)} of {total}, {_minutes(started)}"
                    say(f"[{left}] {one.wanted.label}: {_said(one)}")
                if interrupt.signal is not None:
                    waiting.clear()
                    for one in going:
                        one.tell(interrupt.signal)
                if not ended:
                    time.sleep(0.1)
        except BaseException:
            for one in going:
                one.process.kill()
                one.process.wait()
            raise
        tally.exit_code = 0 if interrupt.signal is None else interrupt.exit_code
    return tally


@dataclass
class _Going:
    wanted: Wanted
    process: subprocess.Popen[bytes]
    is_told: bool = False

    @classmethod
    def start(cls, wanted: Wanted, threads: int, keeps: bool) -> _Going:
        wanted.place.prepare()
        command = [sys.executable, "-m", "topkast.reproduce.worker", str(wanted.place.folder)]
        # In a group of its own: a signal reaches it once, from here, and not from the terminal as well.
        process = subprocess.Popen(
            [*command, *(["keep"] if keeps else [])],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            process_group=0,
            env={**os.environ, "OMP_NUM_THREADS": str(threads)},
        )
        return cls(wanted, process)

    def tell(self, signal: int) -> None:
        if not self.is_told:
            self.process.send_signal(signal)
            self.is_told = True


def _count(one: _Going, tally: Tally) -> None:
    if one.process.returncode == 0 and one.wanted.place.is_finished:
        tally.done += 1
    elif not one.is_told:
        tally.failed[one.wanted.label] = _why(one)


def _why(one: _Going) -> str:
    return one.wanted.place.failure or f"its process ended with {one.process.returncode}"


def _said(one: _Going) -> str:
    result = one.wanted.place.result()
    if result is not None:
        return f"{result['quality']:.4g}"
    return "stopped, with a checkpoint" if one.is_told else f"failed: {_why(one).strip()}"


def _minutes(started: float) -> str:
    return f"{(time.monotonic() - started) / 60:.1f} min"
