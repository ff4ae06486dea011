"""What a run writes down: the lines of `metrics.jsonl`, as plain data."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from topkast.core.weight import SparseWeight
from topkast.cost.accounting import Flops
from topkast.cost.flops import dense_flops
from topkast.cost.parameters import layer_stats, parameters
from topkast.kernels.machine import peak_memory
from topkast.train.trainer import Trainer


def count_flops(trainer: Trainer) -> Flops:
    """FLOPs of a step at the present sets."""
    example = trainer.task.example()
    if trainer.sparse is None:
        return dense_flops(trainer.model, example)
    return trainer.sparse.flops(example)


def num_parameters(trainer: Trainer) -> dict[str, int]:
    """In use (A and what is dense), and of the dense network."""
    counted = parameters(trainer.model, {} if trainer.sparse is None else trainer.sparse.weights)
    return {"used": counted.used, "dense": counted.dense}


def start(trainer: Trainer, name: str) -> dict[str, Any]:
    """The first line: what is trained, and what a step costs."""
    flops, task = count_flops(trainer), trainer.task
    return {
        "event": "start",
        "run": name,
        "task": trainer.config.data.task,
        "title": task.title,
        "quality_name": task.quality_name,
        "higher_is_better": task.higher_is_better,
        "steps": trainer.config.train.steps,
        "unit": task.unit,
        "units_per_step": task.units_per_step,
        "parameters": num_parameters(trainer),
        "flops_per_step": {"sparse": flops.total, "dense": flops.dense_total},
        "layers": _layers(trainer, flops),
    }


def _layers(trainer: Trainer, flops: Flops) -> dict[str, Any]:
    if trainer.sparse is None:
        return {}
    costs = {layer.name: layer for layer in flops.layers}
    table = {}
    for name, weight in trainer.sparse.weights.items():
        cost = costs.get(name)
        table[name] = {
            "shape": list(weight.shape),
            "numel": weight.numel(),
            "forward": weight.counts.forward,
            "backward": weight.counts.backward,
            "engine": weight.describe_engine(),
            "flops": None if cost is None else {"sparse": cost.total, "dense": cost.dense_total},
        }
    return table


def progress(
    trainer: Trainer, *, loss: float, quality: float, seconds: float, flops: float
) -> dict[str, Any]:
    """A line in the middle: how far it is and how the sets moved."""
    weights = {} if trainer.sparse is None else trainer.sparse.weights
    return {
        "event": "progress",
        "step": trainer.step,
        "seconds": seconds,
        "loss": loss,
        "quality": quality,
        "flops": flops,
        "lr": float(trainer.optimizer.param_groups[0]["lr"]),
        "layers": {name: _moved(weight) for name, weight in weights.items()},
    }


def _moved(weight: SparseWeight) -> dict[str, Any]:
    stats = layer_stats(weight)
    values = weight.values.detach().abs()
    return {
        "changed": stats.changed,
        "used": stats.reservoir_used,
        "activated": stats.reservoir_activated,
        "mean_a": _mean(values[weight.active]),
        "mean_explored": _mean(values[~weight.active]),
        "forward": stats.forward,
        "backward": stats.backward,
    }


def _mean(values: Tensor) -> float | None:
    return float(values.mean()) if values.numel() else None


def end(
    trainer: Trainer, *, seconds_per_step: float, bytes_held: dict[str, Any], stopped: str | None
) -> dict[str, Any]:
    """The last line. `stopped` says why it ended before its last step."""
    return {
        "event": "end",
        "step": trainer.step,
        "seconds_per_step": seconds_per_step,
        "bytes": bytes_held,
        "peak_rss": peak_memory(),
        "stopped": stopped,
    }


def held(trainer: Trainer) -> dict[str, Any]:
    """Bytes by layer and part, counted where gradients and Plans exist: after one more backward pass.

    The pass is undone: generators and gradients are as they were.
    """
    batches = trainer.batches.get_state()
    with torch.random.fork_rng(devices=[]):
        trainer.task.aside().loss(trainer.model, trainer.step, trainer.batches).backward()
    trainer.batches.set_state(batches)
    try:
        if trainer.sparse is None:
            return {"layers": {}, "sparse": _dense_bytes(trainer), "dense": _dense_bytes(trainer)}
        memory = trainer.sparse.memory()
        return {"layers": memory.layers, "sparse": memory.sparse, "dense": memory.dense}
    finally:
        trainer.optimizer.zero_grad()


def _dense_bytes(trainer: Trainer) -> int:
    total = 0
    for p in trainer.model.parameters():
        state = trainer.optimizer.state.get(p, {}).values()
        tensors = [p, p.grad, *state]
        total += sum(t.nbytes for t in tensors if isinstance(t, Tensor) and t.shape == p.shape)
    return total
