"""What a run is compared with: the same task and seed, trained another way, each at a rate of its own."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import math
from typing import Any

import torch
from torch import nn

from topkast.methods.named import METHODS, OPTIONS
from topkast.models.network import CATALOGUE
from topkast.train.config import Config
from topkast.train.task import Task

SMALL = "small"
"""Name of the reference that is a dense network with as many parameters as the sparse one uses."""


def names(config: Config) -> list[str]:
    """Those that a run has, without what it is itself."""
    wanted = [] if "none" in config.run.reference else list(config.run.reference)
    return [name for name in wanted if name != config.method.method]


def title(name: str) -> str | None:
    """For people, where the method's own does not say enough."""
    return "dense, as many parameters" if name == SMALL else None


def reference(config: Config, task: Task, name: str, parameters: int) -> tuple[Config, Task]:
    """A reference's options and task.

    Dense networks have the rate `lr`; a fixed mask has that of sparse layers, by the same rule. A narrow
    network takes a larger one: `lr` divided by the root of how much narrower it is.

    Args:
        config: Of the run.
        task: Of the run.
        name: Of the reference.
        parameters: That the run's network uses.
    """
    method = "dense" if name == SMALL else name
    takes = METHODS[method].takes
    options = {option: getattr(config.method, option) if option in takes else None for option in OPTIONS}
    told = dataclasses.replace(
        config,
        method=dataclasses.replace(config.method, method=method, **options),
        train=dataclasses.replace(config.train, patience=None),  # all of them take all steps
    )
    if name != SMALL:
        return told, task
    narrow_task, share = narrowed(task, parameters)
    assert config.train.lr is not None
    rate = float(f"{config.train.lr / math.sqrt(share):.4g}")
    return dataclasses.replace(told, train=dataclasses.replace(told.train, lr=rate)), narrow_task


def narrowed(task: Task, parameters: int) -> tuple[Task, float]:
    """The task with a narrower network, whose parameters are as near to the given number as they can be.

    Depth, heads, window and data stay.

    Returns:
        The task, and the width as a share of that of the given one.
    """
    widths = _widths(task)
    step = widths.get("heads", 1)  # which divide the width
    widest = widths["width"] if "width" in widths else max(widths["hidden"])
    choices = range(step, widest + 1, step)
    low, high = 0, len(choices) - 1
    while low < high:  # the first that has too many, or the widest
        middle = (low + high) // 2
        if _count(_with_width(task, widths, choices[middle] / widest)) < parameters:
            low = middle + 1
        else:
            high = middle
    near = [_with_width(task, widths, choices[i] / widest) for i in {max(0, low - 1), low}]
    best = min(near, key=lambda one: abs(_count(one) - parameters))
    return best, _width_of(best) / widest


def _widths(task: Task) -> dict[str, Any]:
    """The sizes that make a network wide, and heads, which divide its width."""
    network = task.network()
    if network.name == "mlp":
        return {"hidden": task.sizes()["hidden"]}
    sizes = {name: value for name, value in task.sizes().items() if name in ("width", "inner", "heads")}
    if "width" not in sizes:
        sizes["width"] = inspect.signature(CATALOGUE[network.name].constructor).parameters["width"].default
    return sizes


def _width_of(task: Task) -> int:
    widths = _widths(task)
    return widths["width"] if "width" in widths else max(widths["hidden"])


def _with_width(task: Task, widths: dict[str, Any], share: float) -> Task:
    narrow = copy.copy(task)
    for name, size in widths.items():
        if name == "hidden":
            vars(narrow)[name] = tuple(max(1, round(share * one)) for one in size)
        elif name != "heads":
            vars(narrow)[name] = max(1, round(share * size))
    return narrow


def _count(task: Task) -> int:
    with torch.device("meta"):
        model: nn.Module = task.network().build()
    return sum(parameter.numel() for parameter in model.parameters())
