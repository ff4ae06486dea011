from __future__ import annotations

from functools import partial
from itertools import pairwise

from topkast.bench.timing import Timing, time_in_turns


class Clock:
    """Time passes only when a contender says so."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_contenders_run_in_turns_after_a_round_that_does_not_count() -> None:
    clock, calls = Clock(), []
    durations = {"slow": iter([100.0, 2.0, 4.0, 3.0]), "fast": iter([100.0, 1.0, 1.0, 1.0])}

    def run(name: str) -> None:
        calls.append(name)
        clock.now += next(durations[name])

    timings = time_in_turns({name: partial(run, name) for name in durations}, 3, clock=clock)
    rounds = [set(calls[i : i + 2]) for i in range(0, 8, 2)]
    assert rounds == [{"slow", "fast"}] * 4
    assert timings["slow"] == Timing(median=3.0, low=2.5, high=3.5, rounds=(2.0, 4.0, 3.0))
    assert timings["fast"] == Timing(1.0, 1.0, 1.0, (1.0, 1.0, 1.0))


def test_ratios_are_taken_round_by_round() -> None:
    """The machine is three times slower from the second round on."""
    dense, ours = Timing.of([4.0, 12.0, 12.6]), Timing.of([1.0, 3.0, 3.0])
    assert dense.ratio_to(ours) == 4.0


def test_nobody_always_comes_after_the_same_one() -> None:
    calls: list[str] = []
    time_in_turns({name: partial(calls.append, name) for name in "abc"}, 20)
    assert {before for before, name in pairwise(calls) if name == "b"} >= {"a", "c"}


def test_one_round_is_enough() -> None:
    clock = Clock()

    def run() -> None:
        clock.now += 5

    assert time_in_turns({"only": run}, 1, clock=clock)["only"] == Timing(5.0, 5.0, 5.0, (5.0,))
