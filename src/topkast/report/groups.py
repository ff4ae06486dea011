"""Runs that differ in their seed alone, taken together."""

from __future__ import annotations

import math
import statistics
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from topkast.store.run import Progress, Run


@dataclass(frozen=True)
class Group:
    """One way of training, by one seed or by several.

    Attributes:
        name: For tables and figures; differs from that of all other groups.
        runs: At least one.
    """

    name: str
    runs: tuple[Run, ...]

    @property
    def first(self) -> Run:
        return self.runs[0]

    @property
    def qualities(self) -> list[float]:
        """Held-out quality of each seed at its end, those that are finite."""
        return [run.last.quality for run in self.runs if math.isfinite(run.last.quality)]

    @property
    def mean(self) -> float:
        return statistics.fmean(self.qualities) if self.qualities else math.nan

    @property
    def deviation(self) -> float:
        """The sample standard deviation; NaN for a single seed."""
        return statistics.stdev(self.qualities) if len(self.qualities) > 1 else math.nan

    @property
    def points(self) -> list[Progress]:
        """The mean curve, at those steps that all seeds have."""
        if len(self.runs) == 1:
            return self.first.points
        by_step = [{point.step: point for point in run.points} for run in self.runs]
        shared = set(by_step[0]).intersection(*by_step[1:])
        return [_mean([points[step] for points in by_step]) for step in sorted(shared)]


def group(runs: Sequence[Run]) -> list[Group]:
    """Those of the same name whose configurations differ in the seed alone belong together."""
    members: dict[Any, list[Run]] = {}
    for run in runs:
        members.setdefault((run.name, _without_seed(run)), []).append(run)
    names = [first.name for first, *_ in members.values()]
    found: dict[str, Group] = {}
    for together in members.values():
        first = together[0]
        name = first.name if names.count(first.name) == 1 else f"{first.name} ({first.folder.name})"
        while name in found:  # folders of one name in different places
            name += " again"
        found[name] = Group(name, tuple(together))
    return list(found.values())


def _without_seed(run: Run) -> str:
    """The configuration as text; a run without one belongs to no other."""
    try:
        config = tomllib.loads(run.config)
        train = config["train"]
        del train["seed"]
    except (tomllib.TOMLDecodeError, KeyError, TypeError):
        return f"folder {run.folder.resolve()}"
    return repr(
        sorted((name, sorted(section.items())) for name, section in config.items() if name != "format")
    )


def _mean(points: Sequence[Progress]) -> Progress:
    def mean(field: str) -> float:
        return statistics.fmean(getattr(point, field) for point in points)

    return Progress(points[0].step, mean("seconds"), mean("loss"), mean("quality"), mean("flops"))
