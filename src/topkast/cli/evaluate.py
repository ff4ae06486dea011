"""`topkast eval`: how good a trained network is on what it has not seen, and how fast."""

from __future__ import annotations

import argparse
import dataclasses
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn

from topkast.cli.trained_options import add_run, load_run
from topkast.train.image_tasks import ImageTask, PhotoTask
from topkast.train.resolve import make_task
from topkast.train.task import Task
from topkast.train.trained import Trained


def add_parser(commands: Any) -> None:
    parser = commands.add_parser("eval", help="evaluate a trained network on held-out data")
    add_run(parser)
    parser.add_argument(
        "--data", metavar="PATH", help="its held-out part, in place of that of the run's data"
    )
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> None:
    trained = load_run(options)
    task = _task(trained, options.data)
    print(f"step {trained.step:,}; {task.title}")
    if options.data is None and trained.quality is not None:
        print(f"held-out {task.quality_name}: {trained.quality:.3f} as recorded in training")
    quality = task.quality(trained.model, whole=True)
    print(f"held-out {task.quality_name}: {quality:.3f} {task.whole_name}")
    print(_speeds(trained, task))


def _task(trained: Trained, data: str | None) -> Task:
    """The run's task, or the same one with other data, seen as the network learned to see."""
    config = trained.config
    if data is not None:
        config = dataclasses.replace(config, data=dataclasses.replace(config.data, data=str(Path(data))))
    task = make_task(config)
    if task.network() != trained.network:
        raise ValueError(
            f"{data or config.data.data} does not fit the network, which takes {trained.inputs}, "
            f"not {task.inputs()}"
        )
    if isinstance(task, ImageTask | PhotoTask) and list(task.classes) != trained.inputs["classes"]:
        raise ValueError(f"the network knows the classes {trained.inputs['classes']}, got {task.classes}")
    if isinstance(task, ImageTask):
        task.mean, task.std = trained.inputs["mean"], trained.inputs["std"]
    return task


def _speeds(trained: Trained, task: Task) -> str:
    """Units per second, through the sparse kernels and of the same network dense, taking turns."""
    example = task.example()
    networks = {"as trained": trained.model}
    if trained.sparse is not None:
        networks["dense with zeros"] = trained.dense().eval()
    best = dict.fromkeys(networks, float("inf"))
    for _ in range(6):
        for name, model in networks.items():
            best[name] = min(best[name], _seconds(model, example))
    rates = [f"{task.units_per_step / best[name]:,.0f} {name}" for name in networks]
    return f"{task.unit} per second, best of 6 batches: " + ", ".join(rates)


@torch.no_grad()
def _seconds(model: nn.Module, example: Any) -> float:
    arguments = example if isinstance(example, tuple) else (example,)
    started = time.perf_counter()
    model(*arguments)
    return time.perf_counter() - started
