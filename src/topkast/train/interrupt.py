"""SIGINT and SIGTERM: finish the step, then stop."""

from __future__ import annotations

import signal
from types import FrameType, TracebackType
from typing import Any


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
