"""From options to the things they name: the task, the method, the optimizer, its schedule."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

from topkast.core.distribution import nearest
from topkast.methods.base import Method
from topkast.methods.topkast import TopKAST
from topkast.planning.named import Choice, named_method
from topkast.train.config import Config, ModelOptions
from topkast.train.options import set_values
from topkast.train.task import TASKS, Task


def make_task(config: Config) -> Task:
    """The task, with its data read.

    Raises:
        ValueError: A size that this task's network does not have, or data that cannot be used.
        OSError: Data that cannot be read.
    """
    kind = TASKS[config.data.task]
    fields = {f.name for f in dataclasses.fields(kind)}
    sizes = dict(set_values(config.model))
    for name in sizes:
        if name not in fields:
            takes = [n for n in (f.name for f in dataclasses.fields(ModelOptions)) if n in fields]
            raise ValueError(
                f"model.{name} is no size of the network for {config.data.task}, "
                f"which takes {nearest(name, takes)}"
            )
    if config.train.batch is not None:
        sizes["batch"] = config.train.batch
    data = None if config.data.data is None else Path(config.data.data)
    return kind(data, config.data.limit, **sizes)


def resolve(config: Config, task: Task) -> Config:
    """The configuration with everything filled in that follows from the task."""
    steps = config.train.steps or task.steps
    sizes = task.sizes()
    batch = sizes.pop("batch")
    lr = task.lr if config.train.lr is None else config.train.lr
    values: dict[str, dict[str, Any]] = {
        "model": sizes,
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
    every = options.refresh_every
    if options.method == "topkast" and every is None:
        every = 1  # the runs are short; see docs/method.md on choosing N
    choice = Choice(
        options.forward_sparsity,
        options.backward_sparsity,
        every,
        options.begin,
        options.t_end,
        config.train.steps,
    )
    method = named_method(options.method, choice)
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
    """A warm-up, then the learning rate as it is, along a line or along half a cosine to zero."""
    steps = config.train.steps
    assert steps is not None
    warmup = max(1, round(config.train.warmup * steps))
    shapes: dict[str, Callable[[float], float]] = {
        "constant": lambda _: 1.0,
        "linear": lambda share: 1.0 - share,
        "cosine": lambda share: 0.5 * (1 + math.cos(math.pi * share)),
    }
    shape = shapes[config.train.schedule]

    def factor(step: int) -> float:
        if step < warmup:
            return (step + 1) / warmup
        return shape((step - warmup) / max(1, steps - warmup))

    return torch.optim.lr_scheduler.LambdaLR(optimizer, factor)


def has_penalty(method: Method | None) -> bool:
    """Whether the method's own regulariser is the exploration penalty; others have plain weight decay."""
    return isinstance(method, TopKAST)


def dense_groups(model: nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    """Parameter groups of a dense network: weight decay for matrices only."""
    matrices = [p for p in model.parameters() if p.ndim > 1]
    rest = [p for p in model.parameters() if p.ndim <= 1]
    groups = [{"params": matrices, "weight_decay": weight_decay}, {"params": rest, "weight_decay": 0.0}]
    return [group for group in groups if group["params"]]
