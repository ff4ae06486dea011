"""Every table and figure, in the paper's order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from topkast.core.distribution import nearest
from topkast.reproduce import beyond, language, vision
from topkast.reproduce.experiment import Experiment

EXPERIMENTS: Mapping[str, Experiment] = {
    experiment.name: experiment
    for experiment in (
        vision.FIGURE_2A,
        vision.FIGURE_2B,
        vision.FIGURE_2C,
        vision.TABLE_1,
        vision.FIGURE_3A,
        vision.FIGURE_3B,
        language.ENWIK8,
        language.WIKITEXT,
        language.SMALL_TRANSFORMER,
        vision.ALL_SPARSE,
        vision.REFRESH_INTERVAL,
        beyond.COSTS,
        beyond.PENALTY,
        beyond.EXPLORATION,
        beyond.READING,
        beyond.OPTIMIZER,
    )
}


def choose(names: Sequence[str]) -> list[Experiment]:
    """The experiments of these names; "all" is all of them.

    Raises:
        ValueError: A name that is not there.
    """
    if "all" in names:
        return list(EXPERIMENTS.values())
    for name in names:
        if name not in EXPERIMENTS:
            raise ValueError(f"{name!r}: there is {nearest(name, EXPERIMENTS)}; see --list")
    return [experiment for name, experiment in EXPERIMENTS.items() if name in names]
