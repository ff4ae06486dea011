"""Presets as options of a run: those of `models.presets`, and weight-sparse decoders."""

from __future__ import annotations

from typing import Any

from topkast.core.distribution import nearest
from topkast.data.datasets import DATA_SETS
from topkast.models.presets import PRESETS, Preset

Values = dict[str, dict[str, Any]]


def preset_values(name: str) -> Values:
    """The options of a preset, by section.

    Raises:
        ValueError: There is none of that name.
    """
    if name not in PRESET_NAMES:
        raise ValueError(f"--preset must be one of {nearest(name, PRESET_NAMES)}, got {name!r}")
    return WEIGHT_SPARSE[name] if name in WEIGHT_SPARSE else _network_values(PRESETS[name])


def _network_values(chosen: Preset) -> Values:
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


def _weight_sparse(width: int, sparsity: float, floor: int) -> Values:
    """A decoder with so few weights that one can look at them, after Gao et al. 2025.

    Top-K of every matrix at every step, reached in the first half of the run from ten times as many weights.
    Each output keeps `floor` weights. Sizes change at exchanges, so these come often.
    """
    return {
        "data": {"task": "text"},
        "model": {"model": "decoder", "width": width, "depth": 2, "heads": width // 64},
        "method": {
            "forward_sparsity": sparsity,
            "backward_sparsity": round(2 * sparsity - 1, 6),
            "min_fan_in": floor,
            "exchange_every": 20,
            "anneal": "linear",
            "anneal_from": round(1 - 10 * (1 - sparsity), 6),
            "anneal_until": 0.5,
        },
        "train": {
            "steps": 1000,
            "batch": 8,
            # Of all weights: lr·density⁻ᵖ was fitted for densities down to 0.02 and is far too high here.
            "lr": 1e-2,
            "sparse_rate": "same",
            "whole_rate": False,
            "beta2": 0.95,
            "clip": 0.0,
            "clip_rms": 1.0,
        },
        "run": {"reference": ["none"]},  # a dense one takes five to fifteen times as long
    }


WEIGHT_SPARSE = {
    "weight-sparse": _weight_sparse(1024, 0.99, 4),
    "weight-sparse-1000": _weight_sparse(2048, 0.999, 1),
}
PRESET_NAMES = (*PRESETS, *WEIGHT_SPARSE)
