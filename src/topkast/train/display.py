"""Showing a run while it goes: a live bar in a terminal, plain lines elsewhere, nothing."""

from __future__ import annotations

import sys
import textwrap
import time
from collections.abc import Sequence
from typing import TextIO

from topkast.kernels.machine import peak_memory
from topkast.store.run import Progress, Start
from topkast.text import COUNTS, duration, measured, scaled

_SHORTEST_BAR = 6
# Steps before those that are timed, how many of these, and how many seconds are worth a line.
_NOT_TIMED, _TIMED, _WORTH_SAYING = 5, 10, 10.0


class Display:
    """Told of everything that happens; shows what it likes, and this one nothing at all."""

    def introduce(self, lines: Sequence[str]) -> None:
        """What is about to be trained, before anything is."""

    def begin(self, name: str, start: Start, step: int) -> None:
        """A run begins, or goes on from a step."""

    def step(self, step: int, loss: float) -> None:
        """A step was taken."""

    def progress(self, event: Progress) -> None:
        """An evaluation was made."""

    def note(self, text: str) -> None:
        """Something to be read."""

    def finish(self) -> None:
        """The run is over, in whatever way."""


class Quiet(Display):
    """Shows nothing but notes, on standard error."""

    def note(self, text: str) -> None:
        print(text, file=sys.stderr, flush=True)


class Lines(Display):
    """One line per evaluation, for files and pipes."""

    def __init__(self, out: TextIO | None = None) -> None:
        self._out = out or sys.stdout
        self._timed: tuple[int, float] | None = None

    def introduce(self, lines: Sequence[str]) -> None:
        for line in lines:
            self._print("\n".join(textwrap.wrap(line, 80, subsequent_indent="  ")))

    def begin(self, name: str, start: Start, step: int) -> None:
        self._quality = start.quality_name
        again = f", from step {step}" if step else ""
        self._print(f"\n{name}: {start.steps:,} steps{again}")
        self._print(
            f"{'step':>7}  {'loss':>8}  {self._quality:>13}  {'A changed':>9}  {'C used':>7}  {'ms/step':>8}"
        )
        self._last = (step, 0.0)
        self._first, self._steps, self._timed = step, start.steps, None

    def step(self, step: int, loss: float) -> None:
        """After some steps, says how long all of them will take: the first ones choose engines."""
        if step == self._first + _NOT_TIMED:
            self._timed = (step, time.monotonic())
        if self._timed is None or step != self._first + _NOT_TIMED + _TIMED or self._steps <= step:
            return
        began, then = self._timed
        left = (time.monotonic() - then) / (step - began) * (self._steps - step)
        if left > _WORTH_SAYING:
            self._print(f"{'':7}  about {duration(left)} to go")

    def progress(self, event: Progress) -> None:
        changed, used = mean_of(event, "changed"), mean_of(event, "used")
        step, seconds = self._last
        ms = 1000 * (event.seconds - seconds) / max(1, event.step - step)
        self._last = (event.step, event.seconds)
        sets = f"{_percent(changed):>9}  {_percent(used):>7}"
        quality = measured(event.quality, self._quality)
        self._print(f"{event.step:>7}  {event.loss:>8.4f}  {quality:>13}  {sets}  {ms:>8.1f}")

    def note(self, text: str) -> None:
        self._print(text)

    def _print(self, text: str) -> None:
        print(text, file=self._out, flush=True)


class Live(Lines):
    """A bar with loss, quality, speed, how A changed, memory, time left; a line per evaluation above it."""

    def __init__(self) -> None:
        super().__init__()
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

        self._console = Console(highlight=False)
        self._bar = Progress(
            TextColumn("{task.completed:,}/{task.total:,}"),
            BarColumn(bar_width=None),
            TextColumn("{task.fields[state]}"),
            TimeRemainingColumn(compact=True),
            console=self._console,
            transient=True,
        )
        self._shown = 0.0

    def begin(self, name: str, start: Start, step: int) -> None:
        super().begin(name, start, step)
        self._unit, self._units = start.unit, start.units_per_step
        self._task = self._bar.add_task(name, total=start.steps, completed=step, state="")
        self._state = {"quality": "", "changed": ""}
        self._started = (time.monotonic(), step)
        # What the counter, the time left, the spaces between and the shortest bar leave.
        self._room = self._console.width - 2 * len(f"{start.steps:,}") - len("/ 00:00  ") - _SHORTEST_BAR
        self._bar.start()

    def step(self, step: int, loss: float) -> None:  # the bar has the time left
        now = time.monotonic()
        if now - self._shown < 0.1:
            return
        self._shown = now
        began, first = self._started
        rate = self._units * (step - first) / max(1e-9, now - began)
        parts = [
            f"loss {loss:.3g}",
            self._state["quality"],
            f"{_short(rate)} {self._unit}/s",
            self._state["changed"],
            f"{peak_memory() / 1e6:,.0f} MB",
        ]
        text = fitted([part for part in parts if part], self._room)
        self._bar.update(self._task, completed=step, state=text)

    def progress(self, event: Progress) -> None:
        super().progress(event)
        changed = mean_of(event, "changed")
        self._state = {
            "quality": f"eval {event.quality:.4g}",
            "changed": "" if changed is None else f"ΔA {100 * changed:.2g}%",
        }

    def finish(self) -> None:
        self._bar.stop()
        for task in list(self._bar.task_ids):
            self._bar.remove_task(task)

    def _print(self, text: str) -> None:
        self._console.print(text, markup=False, soft_wrap=True)


def make_display(*, quiet: bool) -> Display:
    """What suits the place where the output goes."""
    if quiet:
        return Quiet()
    if not sys.stdout.isatty():
        return Lines()
    try:
        return Live()
    except ImportError:  # the bar is an extra; lines say the same
        return Lines()


def fitted(parts: list[str], room: int) -> str:
    """Those parts that fit, in this order; set apart by two spaces if that leaves room for all."""
    for gap in ("  ", " "):
        if len(gap.join(parts)) <= room:
            return gap.join(parts)
    while parts and len(" ".join(parts)) > room:
        parts = parts[:-1]
    return " ".join(parts)


def mean_of(event: Progress, key: str) -> float | None:
    """Over the layers of a progress event; None for a dense network."""
    numbers = [getattr(layer, key) for layer in event.layers.values()]
    return sum(numbers) / len(numbers) if numbers else None


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{share:.2%}"


def _short(number: float) -> str:
    return f"{number:.0f}" if number < 1000 else scaled(number, COUNTS, digits=3, gap="")
