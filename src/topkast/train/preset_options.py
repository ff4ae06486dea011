"""What a preset of `models.presets` says as options of a run."""

from __future__ import annotations

from typing import Any

from topkast.data.datasets import DATA_SETS
from topkast.models.presets import Preset, preset


def preset_values(name: str) -> dict[str, dict[str, Any]]:
    """The options of a preset, by section.

    Raises:
        ValueError: There is none of that name.
    """
    chosen = preset(name)
    values = {
        "data": {"task": DATA_SETS[chosen.data].task, "dataset": chosen.data},
        "model": {"model": chosen.model, **_sizes(chosen)},
        # The paper's language models count all parameters (docs/networks.md).
        # And all of them train as they were chosen: by the paper's letter, at one rate.
        "method": {
            "letter": True,
            "keep_dense": list(chosen.keep_dense),
            "budget": "model" if chosen.model == "transformer-xl" else "layers",
        },
        "train": {"sparse_rate": "same", "whole_rate": False, **_training(chosen)},
    }
    return {
        section: {option: value for option, value in options.items() if value is not None}
        for section, options in values.items()
    }


def _sizes(chosen: Preset) -> dict[str, Any]:
    if chosen.model != "transformer-xl":
        return {}
    names = {"d_model": "width", "depth": "depth", "num_heads": "heads", "d_ff": "inner"}
    sizes = {ours: chosen.sizes[theirs] for theirs, ours in names.items()}
    if "cutoffs" in chosen.sizes:
        sizes |= {"cutoffs": list(chosen.sizes["cutoffs"]), "div_val": chosen.sizes["div_val"]}
    memory = {"memory": chosen.train_memory, "eval_memory": chosen.eval_memory}
    return {**sizes, **memory, "window": chosen.window, "dropout": chosen.dropout}


def _training(chosen: Preset) -> dict[str, Any]:
    schedule = chosen.schedule
    return {
        "batch": chosen.batch,
        "steps": chosen.steps,
        "optimizer": "sgd" if chosen.optimizer == "momentum" else chosen.optimizer,
        "lr": schedule.peak,
        "lr_start": schedule.start,
        "warmup": schedule.warmup / chosen.steps,
        "schedule": schedule.shape,
        "drops": [step / chosen.steps for step in schedule.drops] or None,
        "weight_decay": chosen.weight_decay,
        "clip": chosen.clip or 0.0,
        "label_smoothing": chosen.label_smoothing or None,
    }
