"""Runs that differ in their seed alone, taken together."""

from __future__ import annotations

import math
import statistics
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from topkast.store.run import Progress, Run


@dataclass(frozen=True)
class Group:
    """One way of training, by one seed or by several.

    Attributes:
        name: For tables and figures; differs from that of all other groups.
        runs: By seed, or numbered where it is not known; at least one.
        results: By seed, what was measured when the run had ended, its "quality" on test data among it. Runs
            that are compared as they were recorded have none.
        length: Of the runs, in multiples of the usual one.
    """

    name: str
    runs: Mapping[int, Run]
    results: Mapping[int, Mapping[str, Any]] = field(default_factory=dict)
    length: float = 1.0

    @cached_property
    def first(self) -> Run:
        return next(iter(self.runs.values()))

    @cached_property
    def qualities(self) -> dict[int, float]:
        """By seed: as measured, or else the last held-out quality where that is finite."""
        if self.results:
            return {seed: float(result["quality"]) for seed, result in self.results.items()}
        found = {seed: run.last.quality for seed, run in self.runs.items()}
        return {seed: quality for seed, quality in found.items() if math.isfinite(quality)}

    @property
    def mean(self) -> float:
        return statistics.fmean(self.qualities.values()) if self.qualities else math.nan

    @property
    def deviation(self) -> float:
        """The sample standard deviation; NaN for a single seed."""
        return statistics.stdev(self.qualities.values()) if len(self.qualities) > 1 else math.nan

    @property
    def sign(self) -> int:
        """1 if more is better, else -1."""
        return 1 if self.first.higher_is_better else -1

    @property
    def unit(self) -> str:
        name = self.first.quality_name
        return "points" if name.endswith(", %") else name

    @property
    def flops(self) -> float:
        """Of the whole of training, against a dense run of the usual length."""
        spent = statistics.fmean(run.last.flops for run in self.runs.values())
        usual = self.first.flops_per_step["dense"] * self.first.steps / self.length
        return spent / usual

    @property
    def seconds(self) -> float:
        """Of the whole of training, without evaluation."""
        return statistics.fmean(run.seconds_per_step * run.last.step for run in self.runs.values())

    @property
    def bytes(self) -> float:
        """Of all that is trained."""
        held = [run.bytes.sparse for run in self.runs.values() if run.bytes is not None]
        return statistics.fmean(held) if held else math.nan

    @property
    def parameters(self) -> float:
        """In use at the end: with pruning they are fewer than at the start."""
        return self.first.used

    @property
    def points(self) -> list[Progress]:
        """The mean curve, at those steps that all seeds have."""
        if len(self.runs) == 1:
            return self.first.points
        by_step = [{point.step: point for point in run.points} for run in self.runs.values()]
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
        found[name] = Group(name, dict(enumerate(together)))
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
