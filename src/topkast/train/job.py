"""A whole job: the network, the references beside it, and what came of them."""

from __future__ import annotations

import dataclasses
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from topkast.methods.topkast import TopKAST
from topkast.train import trained
from topkast.train.config import Config, read_config
from topkast.train.display import Display
from topkast.train.environment import differences, environment
from topkast.train.folder import RunFolder
from topkast.train.interrupt import Interrupt
from topkast.train.metrics import NAME as METRICS
from topkast.train.metrics import read_metrics
from topkast.train.resolve import make_method, resolve
from topkast.train.session import Session
from topkast.train.task import Task
from topkast.train.tasks import make_task
from topkast.train.tensorboard import summary_writer
from topkast.train.trained import CONFIG
from topkast.train.trainer import Trainer


@dataclass(frozen=True)
class Outcome:
    """How a job ended.

    Attributes:
        folder: The run's folder.
        is_finished: Whether everything was done; else it can be resumed.
        exit_code: For the shell.
    """

    folder: Path
    is_finished: bool
    exit_code: int


def start(config: Config, out: Path, display: Display) -> Outcome:
    """Runs a job in a new folder.

    Raises:
        ValueError: Options that do not go together, or data that cannot be used.
        OSError: The folder, or data, cannot be used.
        Stopped: Training failed; the message says from where it can go on.
    """
    if config.run.tensorboard:
        summary_writer()  # what is missing is said before anything is written
    task = make_task(config)
    config = resolve(config, task)
    trainer = _build(config, task)
    files = {CONFIG: config.to_toml(), trained.NAME: trained.describe(task), **task.files()}
    with RunFolder.create(out, files) as folder:
        return _run(Session(trainer, _name(trainer), display, folder), display, folder)


def resume(path: Path, display: Display) -> Outcome:
    """Goes on with a job, bit for bit where machine, versions and threads are the same."""
    with RunFolder.resume(path) as folder:
        config = read_config(path / CONFIG)
        trainer = _build(config, make_task(config))
        for name, (before, now) in differences(folder.environment(), environment()).items():
            display.note(f"{name} was {before} when the run began and is {now}: it may not go on bit for bit")
        session = Session(trainer, _name(trainer), display, folder)
        session.restore()
        return _run(session, display, folder)


def _build(config: Config, task: Task) -> Trainer:
    assert config.train.threads is not None
    torch.set_num_threads(config.train.threads)
    return Trainer(config, task, make_method(config))


def _run(session: Session, display: Display, folder: RunFolder) -> Outcome:
    config = session.trainer.config
    deadline = None if config.train.minutes is None else time.monotonic() + 60 * config.train.minutes
    with Interrupt() as interrupt:
        if not session.run(interrupt, deadline):
            return Outcome(folder.path, False, interrupt.exit_code)
        session.end()
        for name in _references(config):
            if name in session.tally.references:
                continue
            trainer = _build(_reference(config, name), session.trainer.task)
            beside = Session(trainer, _name(trainer), display)
            if not beside.run(interrupt, deadline):
                return Outcome(folder.path, False, interrupt.exit_code)
            folder.metrics.append(beside.as_reference())
            session.tally.references.append(name)
            session.save()
    return Outcome(folder.path, True, 0)


def _references(config: Config) -> list[str]:
    wanted = [] if "none" in config.run.reference else list(config.run.reference)
    return [name for name in wanted if name != config.method.method]


def _reference(config: Config, name: str) -> Config:
    """The same run, dense or with a fixed random mask."""
    method = dataclasses.replace(
        config.method,
        method=name,
        forward_sparsity=config.method.forward_sparsity if name == "static" else None,
        backward_sparsity=None,
        refresh_every=None,
        begin=None,
        t_end=None,
        exploration=None,
    )
    return dataclasses.replace(config, method=method)


def _name(trainer: Trainer) -> str:
    """For people: the method and its sparsities."""
    method = trainer.method
    if method is None:
        return "dense"
    titles = {"TopKAST": "Top-KAST", "Static": "fixed random mask", "Pruning": "pruning", "DeepR": "DEEP R"}
    name = titles.get(type(method).__name__, type(method).__name__)
    pair = sorted({method.forward_sparsity, method.backward_sparsity} - {0.0}, reverse=True)
    words = [name, *(["/".join(f"{100 * s:g}" for s in pair) + " %"] if pair else [])]
    if isinstance(method, TopKAST) and method.exploration == "random":
        words.append("(random)")
    return " ".join(words)


def summary(folder: Path) -> list[dict[str, Any]]:
    """Network and references, a row each: name, quality, parameters, seconds per step, bytes."""
    lines = read_metrics(folder / METRICS)
    first = next(line for line in lines if line["event"] == "start")
    last = next((line for line in reversed(lines) if line["event"] == "progress"), None)
    ended = next((line for line in lines if line["event"] == "end"), None)
    rows = []
    if last is not None:
        per_step = last["seconds"] / last["step"] if ended is None else ended["seconds_per_step"]
        rows.append(
            {
                "name": first["run"],
                "quality": last["quality"],
                "parameters": first["parameters"]["used"],
                "seconds_per_step": per_step,
                "bytes": None if ended is None else ended["bytes"].get("sparse"),
            }
        )
    for line in lines:
        if line["event"] == "reference":
            keys = ("quality", "parameters", "seconds_per_step", "bytes")
            rows.append({"name": line["run"], **{key: line[key] for key in keys}})
    return rows
