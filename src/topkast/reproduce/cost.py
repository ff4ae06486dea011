"""What experiments would take, said before anything is run: parameters, FLOPs and bytes of every run."""

from __future__ import annotations

from collections.abc import Sequence

from topkast.report.words import count, flops, percent, size
from topkast.reproduce.experiment import Experiment
from topkast.reproduce.recipe import Recipe
from topkast.reproduce.scales import Scale
from topkast.text import padded
from topkast.train.dry_run import planned

# For a feeling of what FLOPs are: about what one of today's laptops and accelerators does in training.
_MACHINES = {"a laptop of 100 GFLOP/s": 1e11, "an accelerator of 100 TFLOP/s": 1e14}


def forecast(experiments: Sequence[Experiment], scale: Scale, seeds: int) -> str:
    """A table of all different runs, and their sum."""
    recipes: dict[Recipe, str] = {}
    for experiment in experiments:
        for row in experiment.rows:
            recipes.setdefault(row.recipe, f"{experiment.name}: {row.label}")
    lines = [_line("run", "steps", "parameters", "of dense", "FLOPs", "of dense", "bytes")]
    total = 0.0
    for recipe, label in recipes.items():
        config = scale.config(recipe, 0, is_forecast=True)
        found = planned(config)
        assert config.train.steps is not None
        spent = found.run.total if found.run is not None else found.step.total * config.train.steps
        total += spent * seeds
        share = spent / (found.step.dense_total * config.train.steps)
        held = found.dense_bytes if recipe.method == "dense" else found.sparse_bytes
        parameters = found.parameters
        used, part = count(parameters.used), percent(parameters.fraction)
        lines.append(
            _line(label, f"{config.train.steps:,}", used, part, flops(spent), percent(share), size(held))
        )
    times = ", ".join(f"{total / rate / 3600:,.2g} hours on {name}" for name, rate in _MACHINES.items())
    lines.append(f"{len(recipes)} runs × {seeds} seeds: {flops(total)}; that is {times}")
    return "\n".join(lines)


def _line(name: str, *cells: str) -> str:
    return padded((name[:44], *cells), (44, 8, 12, 9, 13, 9, 9), gap=" ")
