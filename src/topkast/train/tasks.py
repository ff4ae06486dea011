"""From options to the task they are about, with its data."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from topkast.core.distribution import nearest
from topkast.data.datasets import DATA_SETS
from topkast.train import photo_task
from topkast.train.config import Config, ModelOptions, section_of
from topkast.train.image_task import ImageTask
from topkast.train.options import rules, set_values
from topkast.train.photo_task import PhotoTask
from topkast.train.recurrent_task import RecurrentTask
from topkast.train.task import Task
from topkast.train.text_task import TextTask

_MODELS = {"text": ("decoder", "transformer-xl"), "images": ("mlp", "resnet20", "resnet18", "resnet50")}


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
            takes = [option for option in rules(ModelOptions) if option in fields]
            what = config.model.model or config.data.task
            raise ValueError(
                f"{section_of(name)}.{name} is not taken by {what}; "
                f"of the network it takes {nearest(name, takes)}"
            )
    data = None if config.data.data is None else Path(config.data.data)
    if is_unread and config.data.dataset is not None:
        options["is_unread"] = True
    return kind(data=data, limit=config.data.limit, **options)  # pyright: ignore[reportCallIssue]


def _kind(config: Config) -> type[TextTask | RecurrentTask | ImageTask | PhotoTask]:
    """Which task the options are about."""
    task, model, dataset = config.data.task, config.model.model, config.data.dataset
    known = [name for name, data_set in DATA_SETS.items() if data_set.task == task]
    if dataset is not None and dataset not in known:
        raise ValueError(f"data.dataset must be one of {', '.join(known)} for {task}, got {dataset!r}")
    models = photo_task.MODELS if dataset == "imagenet" else _MODELS[task]
    if model is not None and model not in models:
        raise ValueError(
            f"model.model must be one of {', '.join(models)} for {dataset or task}, got {model!r}"
        )
    if model == "decoder" and dataset is not None:
        raise ValueError(
            f"a decoder learns from a file or folder (--data); {dataset} is for a transformer-xl"
        )
    if task == "text":
        return RecurrentTask if model == "transformer-xl" or dataset is not None else TextTask
    return PhotoTask if dataset == "imagenet" else ImageTask


def _shared(config: Config) -> dict[str, Any]:
    """Options outside of [model] that tasks take, as far as they were chosen."""
    train = config.train
    chosen = {
        "dataset": config.data.dataset,
        "test_limit": config.data.test_limit,
        "batch": train.batch,
        "augment": train.augment,
        "label_smoothing": train.label_smoothing,
    }
    shared = {name: value for name, value in chosen.items() if value is not None}
    return shared if _kind(config) is TextTask else {**shared, "seed": train.seed}
