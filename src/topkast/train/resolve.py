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
from topkast.train import texts
from topkast.train.config import Config, ModelOptions
from topkast.train.image_task import ImageTask
from topkast.train.options import set_values
from topkast.train.photo_task import PhotoTask
from topkast.train.recurrent_task import RecurrentTask
from topkast.train.task import Task
from topkast.train.text_task import TextTask


def make_task(config: Config, *, is_unread: bool = False) -> Task:
    """The task, with its data read; a published set may stay unread for a forecast.

    Raises:
        ValueError: An option that this task does not have, or data that cannot be used.
        OSError: Data that cannot be read.
    """
    kind = _kind(config)
    fields = {f.name for f in dataclasses.fields(kind)}
    options = {**dict(set_values(config.model)), **_shared(config)}
    if kind in (TextTask, RecurrentTask):
        options.pop("model", None)
    for name in options:
        if name not in fields:
            section = (
                "model" if name in {f.name for f in dataclasses.fields(ModelOptions)} else _SECTION[name]
            )
            takes = [n for n in (f.name for f in dataclasses.fields(ModelOptions)) if n in fields]
            what = options.get("model") or config.model.model or config.data.task
            raise ValueError(
                f"{section}.{name} is not taken by {what}; of the network it takes {nearest(name, takes)}"
            )
    data = None if config.data.data is None else Path(config.data.data)
    if is_unread and config.data.dataset is not None:
        options["is_unread"] = True
    return kind(data=data, limit=config.data.limit, **options)  # pyright: ignore[reportCallIssue]


_SECTION = {
    "dataset": "data",
    "seed": "train",
    "batch": "train",
    "augment": "train",
    "label_smoothing": "train",
}


def _kind(config: Config) -> type[TextTask | RecurrentTask | ImageTask | PhotoTask]:
    """Which task the options are about."""
    task, model, dataset = config.data.task, config.model.model, config.data.dataset
    models = _MODELS[task]
    if model is not None and model not in models:
        raise ValueError(f"model.model must be one of {', '.join(models)} for {task}, got {model!r}")
    if dataset is not None and dataset not in _DATASETS[task]:
        known = ", ".join(_DATASETS[task])
        raise ValueError(f"data.dataset must be one of {known} for {task}, got {dataset!r}")
    if model == "decoder" and dataset is not None:
        raise ValueError(
            f"a decoder learns from a file or folder (--data); {dataset} is for a transformer-xl"
        )
    if task == "text":
        return RecurrentTask if model == "transformer-xl" or dataset is not None else TextTask
    return PhotoTask if dataset == "imagenet" else ImageTask


_MODELS = {"text": ("decoder", "transformer-xl"), "images": ("mlp", "resnet20", "resnet18", "resnet50")}
_DATASETS = {"text": texts.NAMES, "images": ("cifar-10", "imagenet")}


def _shared(config: Config) -> dict[str, Any]:
    """Options outside of [model] that tasks take, as far as they were chosen."""
    train = config.train
    chosen = {
        "dataset": config.data.dataset,
        "batch": train.batch,
        "augment": train.augment,
        "label_smoothing": train.label_smoothing,
    }
    shared = {name: value for name, value in chosen.items() if value is not None}
    return shared if _kind(config) is TextTask else {**shared, "seed": train.seed}


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


def has_penalty(method: Method | None) -> bool:
    """Whether the method's own regulariser is the exploration penalty; others have plain weight decay."""
    return isinstance(method, TopKAST)


def dense_groups(model: nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    """Parameter groups of a dense network: weight decay for matrices only."""
    matrices = [p for p in model.parameters() if p.ndim > 1]
    rest = [p for p in model.parameters() if p.ndim <= 1]
    groups = [{"params": matrices, "weight_decay": weight_decay}, {"params": rest, "weight_decay": 0.0}]
    return [group for group in groups if group["params"]]
