"""`Outcome`: what came of a recipe, over its seeds."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from topkast.core.sets import Counts
from topkast.report import read_run
from topkast.reproduce.cache import Place, place
from topkast.reproduce.recipe import Recipe
from topkast.reproduce.scales import Scale
from topkast.store.run import Run
from topkast.train.config import read_run_config
from topkast.train.resolve import make_method
from topkast.train.trained import CONFIG


@dataclass(frozen=True)
class Outcome:
    """The runs of one recipe.

    Attributes:
        label: Of its row.
        recipe: What was trained.
        runs: By seed, as recorded.
        results: By seed, what was measured at the end.
    """

    label: str
    recipe: Recipe
    runs: Mapping[int, Run]
    results: Mapping[int, Mapping[str, Any]]

    @cached_property
    def first(self) -> Run:
        return next(iter(self.runs.values()))

    @cached_property
    def qualities(self) -> dict[int, float]:
        """On the test data, by seed."""
        return {seed: float(result["quality"]) for seed, result in self.results.items()}

    @property
    def mean(self) -> float:
        return statistics.fmean(self.qualities.values())

    @property
    def deviation(self) -> float:
        """The sample standard deviation; NaN for a single seed."""
        values = list(self.qualities.values())
        return statistics.stdev(values) if len(values) > 1 else math.nan

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
        usual = self.first.flops_per_step["dense"] * self.first.steps / self.recipe.length
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
        run = self.first
        gone = [
            run.layers[name].forward - point.forward
            for name, point in run.last.layers.items()
            if name in run.layers and point.forward is not None
        ]
        return run.parameters["used"] - sum(gone)


def outcome(label: str, recipe: Recipe, scale: Scale, seeds: range, out: Path) -> Outcome | None:
    """What came of a recipe, by the seeds that are finished; None if none is."""
    runs, results = {}, {}
    for seed in seeds:
        found = _find(recipe, scale, seed, out)
        if found is not None and (result := found.result()) is not None:
            results[seed], runs[seed] = result, read_run(found.run)
    return Outcome(label, recipe, runs, results) if runs else None


def _find(recipe: Recipe, scale: Scale, seed: int, out: Path) -> Place | None:
    try:
        return place(out, scale.config(recipe, seed))
    except FileNotFoundError:
        return None


def mean_backward(found: Outcome) -> float:
    """Mean density of the weight gradient over the run, over all sparse layers; 1 for dense (Figure 2b)."""
    run = found.first
    method = make_method(read_run_config(run.folder / CONFIG))
    if method is None:
        return 1.0
    total = sum(layer.numel for layer in run.layers.values())
    share = 0.0
    for layer in run.layers.values():
        counts = Counts(layer.numel, layer.forward, layer.backward)
        if method.resizes:  # recorded as it was at the start
            counts = Counts.from_density(
                layer.numel, 1 - method.forward_sparsity, 1 - method.backward_sparsity
            )
        steps = range(1, run.steps + 1)
        share += statistics.fmean(method.densities(step, counts)[1] for step in steps) * layer.numel / total
    return share
