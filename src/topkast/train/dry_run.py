"""What a run would take, said before it is begun."""

from __future__ import annotations

import time
from typing import Any

import torch

from topkast.cost.forecast import Forecast, forecast
from topkast.methods.named import Choice, named_method
from topkast.text import FLOPS, duration, scaled
from topkast.train.config import Config
from topkast.train.resolve import make_method, make_task, resolve
from topkast.train.task import Task
from topkast.train.trainer import Trainer

# FLOPs of a step, and bytes, up to which a few steps are tried.
_SMALL_STEP, _SMALL_MODEL = 2e12, 2e9
_TRIED = 3


def dry_run(config: Config) -> str:
    """Parameters, FLOPs and bytes from shapes alone; the time of a step by a few that are thrown away.

    A published data set need not be there; then, and for large networks, no step is tried.
    """
    task, is_here = _task(config)
    config = resolve(config, task)
    steps = config.train.steps
    found = _planned(config, task, steps)
    flops, run = found.step, found.run
    used, dense = found.parameters.used, found.parameters.dense
    assert steps is not None
    assert run is not None
    is_dense = config.method.method == "dense"
    held = found.dense_bytes if is_dense else found.sparse_bytes
    lines = [
        f"data: {task.title}",
        f"network: {task.network().name}, {dense:,} parameters",
        f"parameters in use: {used:,} of {dense:,} ({used / dense:.1%})",
        f"FLOPs of a step: {_scaled(flops.total)}, {flops.training_fraction:.1%} of dense; "
        f"of {steps:,} steps: {_scaled(run.total)}",
        f"bytes of weights, gradients, optimizer and sets: {_bytes(held)} "
        f"({_bytes(found.dense_bytes)} dense)",
    ]
    if not is_here:
        return "\n".join([*lines, "no step was tried: the data is not here"])
    if flops.total > _SMALL_STEP or held > _SMALL_MODEL:
        return "\n".join([*lines, "no step was tried: it is too large to be a trial"])
    seconds = _seconds_per_step(config, task)
    lines.append(
        f"a step takes {duration(seconds)} here; {steps:,} steps {duration(seconds * steps)}, "
        "without evaluations and references"
    )
    return "\n".join(lines)


def planned(config: Config) -> Forecast:
    """What a run would take, with the FLOPs of all its steps; a published data set need not be there."""
    task, _ = _task(config)
    resolved = resolve(config, task)
    return _planned(resolved, task, resolved.train.steps)


def _task(config: Config) -> tuple[Task, bool]:
    """The task, and whether its data is here."""
    try:
        return make_task(config), True
    except FileNotFoundError:
        if config.data.dataset is None or config.data.data is not None:
            raise
        return make_task(config, is_unread=True), False


def _planned(config: Config, task: Task, steps: int | None) -> Forecast:
    options, train = config.method, config.train
    with torch.device("meta"):
        model, example = task.network().build(), task.example()
    return forecast(
        model,
        example,
        make_method(config) or named_method("dense", Choice()),
        optimizer="momentum" if train.optimizer == "sgd" and train.momentum else train.optimizer,
        skip=list(options.skip) or None,
        keep_dense=options.keep_dense,
        distribution=options.distribution,  # pyright: ignore[reportArgumentType]
        budget=options.budget,  # pyright: ignore[reportArgumentType]
        reservoir=options.reservoir,  # pyright: ignore[reportArgumentType]
        steps=steps,
    )


def _seconds_per_step(config: Config, task: Task) -> float:
    trainer = Trainer(config, task, make_method(config))
    trainer.take_step()  # the first one chooses engines
    started = time.perf_counter()
    for _ in range(_TRIED):
        trainer.take_step()
    return (time.perf_counter() - started) / _TRIED


def _scaled(amount: float) -> str:
    return scaled(amount, FLOPS, digits=3)


def _bytes(amount: Any) -> str:
    return f"{amount / 1e6:,.1f} MB"
