"""This process and those around it: signals from outside, and the ranks that `torchrun` starts beside it."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType, TracebackType
from typing import Any, NoReturn

from topkast.core.ranks import Ranks, joined


class FailedElsewhere(RuntimeError):
    """The first rank cannot go on, and says why."""


def are_several() -> bool:
    """Whether this process is one of several."""
    return "RANK" in os.environ and _number("WORLD_SIZE", 1) > 1


def is_first() -> bool:
    """Whether this process is the one that writes and speaks."""
    return not are_several() or _number("RANK", 0) == 0


def label() -> str:
    """Who speaks, for messages: nothing for the first."""
    return "" if is_first() else f" (rank {_number('RANK', 0)})"


def were_restarted() -> bool:
    """Whether this is not the first try: torchrun starts all workers again when one has died."""
    return _number("TORCHELASTIC_RESTART_COUNT", 0) > 0


def may_be_restarted() -> bool:
    """Whether there may be another try."""
    return _number("TORCHELASTIC_MAX_RESTARTS", 0) > 0


def _number(name: str, default: int) -> int:
    return int(os.environ.get(name, default))


def leave(code: int) -> NoReturn:
    """Ends this process at once, once what was said is out: everything else is on the disk by then.

    DistributedDataParallel (torch 2.13) keeps its process group after `destroy_process_group`, and with it
    gloo's threads. At the end of a process C++ destroys what they use, while other ranks hang up on them: now
    and then a rank ended with SIGABRT in place of its exit code.
    """
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError):  # nobody listens any more
            stream.flush()
    os._exit(code)


@contextmanager
def together() -> Iterator[Ranks | None]:
    """All processes of the run as ranks; None if there is only this one."""
    if not are_several():
        yield None
        return
    with joined(_attempt()) as ranks:
        yield ranks


def _attempt() -> str:
    """The number of this try, where all ranks know it.

    Agents on several machines count their own; there, `TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1` makes torchrun
    give each try a place of its own.
    """
    is_one_machine = _number("LOCAL_WORLD_SIZE", 0) == _number("WORLD_SIZE", 1)
    return str(_number("TORCHELASTIC_RESTART_COUNT", 0)) if is_one_machine else ""


class Interrupt:
    """While it is entered, a signal is noted and nothing else happens; a second one goes its usual way.

    Args:
        is_patient: Whether a second one is only noted too: torchrun passes on what the terminal has sent to
            everybody, and kills who takes too long.

    Attributes:
        signal: The signal that came, or None.
    """

    _SIGNALS = (signal.SIGINT, signal.SIGTERM)

    def __init__(self, *, is_patient: bool = False) -> None:
        self.signal: int | None = None
        self._is_patient = is_patient
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Interrupt:
        for number in self._SIGNALS:
            self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.signal = number
        if not self._is_patient:
            signal.signal(number, self._before[number])

    @property
    def exit_code(self) -> int:
        """What a shell expects of a process that a signal has ended."""
        return 0 if self.signal is None else 128 + self.signal
