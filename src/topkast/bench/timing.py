"""Timing in turns: every contender once per round, so that a slow spell of the machine hits all of them.

The order changes from round to round: what ran just before leaves something in the caches, more of use to one
contender than to another, and in a fixed order it would always be the same one.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Timing:
    """Seconds of one contender over all rounds.

    Attributes:
        median: Seconds.
        low: First quartile.
        high: Third quartile.
        rounds: All of them, in order.
    """

    median: float
    low: float
    high: float
    rounds: tuple[float, ...] = ()

    @classmethod
    def of(cls, seconds: list[float]) -> Timing:
        if len(seconds) == 1:
            return cls(seconds[0], seconds[0], seconds[0], tuple(seconds))
        low, median, high = statistics.quantiles(seconds, n=4, method="inclusive")
        return cls(median, low, high, tuple(seconds))

    def as_record(self) -> dict[str, float]:
        """As reports keep it."""
        return {"seconds": self.median, "seconds_low": self.low, "seconds_high": self.high}

    def ratio_to(self, other: Timing) -> float:
        """How many times as long as the other, round by round: the median of the rounds' ratios.

        A machine that others use too runs at one speed for a while and then at another; within a round both
        contenders met the same one.
        """
        pairs = zip(self.rounds, other.rounds, strict=True)
        return statistics.median(mine / theirs for mine, theirs in pairs)


def time_in_turns(
    contenders: Mapping[str, Callable[[], object]],
    repeats: int,
    *,
    pause: float = 0.0,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, Timing]:
    """Runs all contenders in turns, `repeats` rounds after one that warms up, and times each run.

    Args:
        contenders: Name → what to time.
        repeats: Rounds that count.
        pause: Seconds to wait before each run. A library with an OpenMP runtime of its own leaves threads
            behind that spin for a moment; without a pause the next contender would pay for them.
        clock: Gives seconds.
    """
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    order, chance = list(contenders), random.Random(0)
    for turn in range(repeats + 1):
        chance.shuffle(order)
        for name in order:
            if pause:
                time.sleep(pause)
            started = clock()
            contenders[name]()
            elapsed = clock() - started
            if turn > 0:
                seconds[name].append(elapsed)
    return {name: Timing.of(record) for name, record in seconds.items()}
