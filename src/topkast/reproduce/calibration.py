"""The search for the rates of rows: for every method at every sparsity the same, on validation data.

Three rates, a factor of two apart, around what the library's rule gives; then beyond the end that is best,
until the best one has a worse one on both sides. One seed, whole runs. Runs are kept as those of tables are,
so that a search that was stopped goes on.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from pathlib import Path

from topkast.reproduce.experiment import Experiment, Row
from topkast.reproduce.farm import Harvest, Measured, place, run_all
from topkast.reproduce.recipes import Recipe
from topkast.reproduce.scales import Scale, by_rule
from topkast.reproduce.tuned_rates import Rate
from topkast.reproduce.tuning import Tuned
from topkast.train.config import Config

FACTOR = 2.0
_MOST = 6  # rates of a row
_SEED = 0


def recipes_by_key(experiments: Sequence[Experiment], scale: Scale) -> dict[str, Recipe]:
    """One recipe for each rate that the tables need; Top-KAST's B has twice the weights of A."""
    found: dict[str, Recipe] = {}
    for experiment in experiments:
        for row in experiment.rows:
            recipe = row.recipe
            base = scale.of(recipe)
            if base.data.dataset is None or recipe.lr is not None:
                continue  # what every machine has is small: the rule is good enough
            forward = recipe.forward
            backward = None
            if recipe.method == "topkast" and forward is not None:
                backward = max(0.0, round(2 * forward - 1, 12))
            plain = Recipe(
                workload=recipe.workload,
                method=recipe.method,
                forward=forward,
                backward=backward,
                variant=recipe.variant,
            )
            found.setdefault(scale.rate_key(recipe, base), plain)
    return found


def find_rates(
    experiments: Sequence[Experiment],
    scale: Scale,
    out: Path,
    known: dict[str, Rate],
    *,
    jobs: int,
    say: Callable[[str], None],
    keep: Callable[[dict[str, Rate]], None],
) -> Harvest:
    """Finds the rates that are not known yet.

    Args:
        experiments: Whose rows are looked at.
        scale: Of what size.
        out: Where runs are kept.
        known: Rates by key; those that are found are added.
        jobs: Processes at a time.
        say: Told of each run that ended.
        keep: Called with all rates when some were found.
    """
    harvest = Harvest()
    open_ones = [
        Tuned(Row(name, r)) for name, r in recipes_by_key(experiments, scale).items() if name not in known
    ]
    wanted = [(one, power) for one in open_ones for power in (-1, 0, 1)]
    while wanted:
        harvest = _run(wanted, scale, out, jobs, say)
        if harvest.exit_code != 0:
            break
        following = [(one, one.next(_SEED, _MOST)) for one in open_ones]
        wanted = [(one, power) for one, power in following if power is not None]
        known |= {one.row.label: _rate(one, scale) for one, power in following if power is None}
        keep(known)
    return harvest


def _config(scale: Scale, recipe: Recipe, power: int) -> Config:
    base = scale.of(recipe)
    rate = float(f"{by_rule(recipe, base) * FACTOR**power:.4g}")
    told = scale.config(dataclasses.replace(recipe, lr=rate), _SEED)
    held_out = scale.validation.get(recipe.workload)
    return told if held_out is None else told.with_values({"data": {"validation": held_out}})


def _run(
    wanted: Sequence[tuple[Tuned, int]], scale: Scale, out: Path, jobs: int, say: Callable[[str], None]
) -> Harvest:
    """Finishes runs and notes what came of them."""
    places: list[tuple[Tuned, int, Measured]] = []
    for one, power in wanted:
        config = _config(scale, one.row.recipe, power)
        here = place(out, config, f"{one.row.label}, lr {config.train.lr:g}")
        here.prepare(config)
        places.append((one, power, here))
    harvest = run_all([here for *_, here in places], jobs=jobs, say=say)
    for one, power, here in places:
        one.note(power, _SEED, here)
    return harvest


def _rate(tuned: Tuned, scale: Scale) -> Rate:
    best = tuned.best(_SEED)
    lr = {power: _config(scale, tuned.row.recipe, power).train.lr or 0.0 for power in sorted(tuned.found)}
    tried = {
        f"{lr[power]:g}": quality if math.isfinite(quality := tuned.found[power][_SEED]) else None
        for power in lr
    }
    return Rate(lr[best], tuned.found[best][_SEED], tried)
