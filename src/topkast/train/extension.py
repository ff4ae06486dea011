"""Runs that go on for longer than they were to: what that does to everything that goes by their length.

The learning rate of steps that were taken stays as it was. From the step at which the run was extended its
schedule goes by the new length. All else keeps the steps it had: the warm-up, annealing, and the schedule of
the method (RigL's and SNFS's updates, pruning, the end of exploration).
"""

from __future__ import annotations

from itertools import pairwise

from topkast.train.config import Config


def first_length(config: Config) -> int:
    """The steps that the run was started for."""
    steps, extended = config.train.steps, config.train.extended
    assert steps is not None
    return extended[1] if extended else steps


def length_at(config: Config, step: int) -> int:
    """The steps that the run was to have when `step` steps had been taken."""
    steps, extended = config.train.steps, config.train.extended or ()
    assert steps is not None
    for at, length in zip(extended[::2], extended[1::2], strict=True):
        if step < at:
            return length
    return steps


def num_extensions(config: Config) -> int:
    """How often the run was extended."""
    return len(config.train.extended or ()) // 2


def check_extensions(config: Config) -> None:
    """Raises ValueError unless the extensions are pairs, each after the one before, within the run."""
    extended = config.train.extended or ()
    pairs = list(zip(extended[::2], extended[1::2], strict=False))
    lengths = [length for _, length in pairs] + [config.train.steps or 0]
    rising = all(a < b for a, b in pairwise(lengths))
    taken = [step for step, _ in pairs]
    if len(extended) % 2 or not rising or taken != sorted(taken) or any(at > n for at, n in pairs):
        raise ValueError(
            "train.extended must be pairs, the step of each extension and the steps before it, below "
            f"train.steps ({config.train.steps}), got {list(extended)}"
        )


def extended(config: Config, taken: int, steps: int) -> Config:
    """The options of a run that goes on to `steps` steps, of which some have been taken.

    Raises:
        ValueError: It would not be longer.
    """
    before = config.train.steps
    assert before is not None
    if steps == before and taken < before:
        return config
    if steps <= before:
        raise ValueError(
            f"--steps must exceed the {before:,} steps of the run to extend it, got {steps:,}; "
            f"{taken:,} are taken"
        )
    past = [*(config.train.extended or ()), *([taken, before] if taken else [])]
    return config.with_values({"train": {"steps": steps, **({"extended": past} if past else {})}})


def describe(config: Config) -> str:
    """What the last extension does, in a sentence for the user."""
    assert config.train.extended is not None
    taken, before = config.train.extended[-2:]
    schedule = config.train.schedule
    rate = (
        "the learning rate stays constant"
        if schedule == "constant"
        else f"the {schedule} schedule of the learning rate goes by the new length from here on, and rates "
        "of steps taken stay"
    )
    return (
        f"extended at step {taken:,} from {before:,} to {config.train.steps:,} steps: {rate}; the warm-up, "
        "annealing and the method's own schedule keep their steps; references are trained anew in the same "
        "way"
    )
