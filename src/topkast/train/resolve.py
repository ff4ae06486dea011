"""From options to the things they name: the method, the optimizer, its schedule."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from topkast.methods.base import Method
from topkast.methods.named import METHODS, OPTIONS, Choice, named_method
from topkast.train.config import Config
from topkast.train.task import Task


def resolve(config: Config, task: Task) -> Config:
    """The configuration with everything filled in that follows from the task."""
    steps = config.train.steps or task.steps
    sizes = task.sizes()
    batch = sizes.pop("batch")
    lr = task.lr if config.train.lr is None else config.train.lr
    values: dict[str, dict[str, Any]] = {
        "model": {**sizes, "model": task.network().name},
        "train": {
            "steps": steps,
            "lr": lr,
            "batch": batch,
            "threads": config.train.threads or torch.get_num_threads(),
        },
        "run": {
            "evaluate_every": config.run.evaluate_every or max(1, min(50, steps // 8)),
            "checkpoint_every": config.run.checkpoint_every or max(1, min(100, steps // 4)),
        },
    }
    return config.with_values(values)


def make_method(config: Config) -> Method | None:
    """The method; None for a dense network.

    Raises:
        ValueError: Settings that the method does not have, or a schedule longer than the run.
    """
    options = config.method
    if options.method == "dense":
        return None
    chosen = {name: getattr(options, name) for name in OPTIONS}
    if chosen["refresh_every"] is None:
        chosen["refresh_every"] = METHODS[options.method].every
    method = named_method(options.method, Choice(**chosen, steps=config.train.steps))
    assert config.train.steps is not None
    method.check_run(config.train.steps)
    return method


def make_optimizer(config: Config, groups: list[dict[str, Any]]) -> torch.optim.Optimizer:
    options = config.train
    assert options.lr is not None
    if options.optimizer == "sgd":
        return torch.optim.SGD(groups, lr=options.lr, momentum=options.momentum)
    kind = torch.optim.AdamW if options.optimizer == "adamw" else torch.optim.Adam
    return kind(groups, lr=options.lr)


def make_schedule(config: Config, optimizer: torch.optim.Optimizer) -> torch.optim.lr_scheduler.LambdaLR:
    """A warm-up, then the rate as it is, along a line or half a cosine to zero, or in drops to a tenth."""
    steps, lr = config.train.steps, config.train.lr
    assert steps is not None
    assert lr is not None
    warmup = max(1, round(config.train.warmup * steps))
    start = None if config.train.lr_start is None or lr == 0 else config.train.lr_start / lr
    drops = [share * steps for share in config.train.drops]
    shapes: dict[str, Callable[[int], float]] = {
        "constant": lambda _: 1.0,
        "linear": lambda step: 1.0 - _share(step, warmup, steps),
        "cosine": lambda step: 0.5 * (1 + math.cos(math.pi * _share(step, warmup, steps))),
        "drops": lambda step: 0.1 ** sum(step >= drop for drop in drops),
    }
    shape = shapes[config.train.schedule]

    def factor(step: int) -> float:
        if step >= warmup:
            return shape(step)
        return (step + 1) / warmup if start is None else start + (1 - start) * step / warmup

    return torch.optim.lr_scheduler.LambdaLR(optimizer, factor)


def _share(step: int, warmup: int, steps: int) -> float:
    """How far a step is from the end of the warm-up to the last step."""
    return (step - warmup) / max(1, steps - warmup)


def dense_groups(model: nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    """Parameter groups of a dense network: weight decay for matrices only."""
    matrices = [p for p in model.parameters() if p.ndim > 1]
    rest = [p for p in model.parameters() if p.ndim <= 1]
    groups = [{"params": matrices, "weight_decay": weight_decay}, {"params": rest, "weight_decay": 0.0}]
    return [group for group in groups if group["params"]]
