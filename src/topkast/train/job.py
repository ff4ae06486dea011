"""A whole job: the network, the references beside it, and what came of them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from topkast.core.ranks import Ranks
from topkast.cost.forecast import why_alone
from topkast.data.batches import Share
from topkast.methods.base import Method
from topkast.methods.named import METHODS, title_of
from topkast.store import checkpoint
from topkast.store.record import SAMPLE
from topkast.train import events, references, trackers, trained
from topkast.train.config import Config, read_run_config
from topkast.train.display import Display
from topkast.train.extension import extended
from topkast.train.folder import RunFolder, differences, environment
from topkast.train.resolve import check_device, make_method, make_task, resolve
from topkast.train.sampling import sample
from topkast.train.session import Session
from topkast.train.task import Task
from topkast.train.trained import CONFIG
from topkast.train.trainer import Trainer
from topkast.train.transfer import take_weights
from topkast.train.workers import FailedElsewhere, Interrupt


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


def start(config: Config, out: Path, display: Display, ranks: Ranks | None = None) -> Outcome:
    """Runs a job in a new folder.

    Args:
        config: Its options.
        out: Where the folder will be.
        display: Told of everything.
        ranks: The processes that run it together, or None for this one alone. The first has the folder.

    Raises:
        ValueError: Options that do not go together, or data that cannot be used.
        OSError: The folder, or data, cannot be used.
        Stopped: Training failed; the message says from where it can go on.
    """
    for name in trackers.names(config):
        trackers.TRACKERS[name].check()  # what is missing is said before anything is written
    task = make_task(config)
    config = resolve(config, task)
    if ranks is not None:
        config = ranks.from_first(config)  # what follows from the machine may differ between machines
    trainer = _build(config, task, ranks)
    if config.run.weights_from is not None:
        take_weights(trainer, Path(config.run.weights_from))
    files = {CONFIG: config.to_toml(), trained.NAME: trained.describe(task), **task.files()}
    with _opened(lambda: RunFolder.create(out, files), ranks) as folder:
        session = Session(trainer, _name(trainer), display, folder)
        display.introduce(_introduction(session))
        return _run(session, display, out)


def _introduction(session: Session) -> list[str]:
    """What is about to be trained, a line each: data, network, how it is sparse."""
    trainer = session.trainer
    counted, network = events.num_parameters(trainer), trainer.task.network()
    sizes = ", ".join(f"{name} {value}" for name, value in network.arguments.items())
    flops = events.count_flops(trainer)
    device = trainer.config.train.device
    where = [] if device == "cpu" else [f"on {device}: small, but no faster than dense (docs/devices.md)"]
    return [
        f"data: {trainer.task.title}",
        f"network: {network.name} ({sizes})",
        f"{session.name}: {counted['used']:,.0f} of {counted['dense']:,.0f} parameters in use "
        f"({counted['used'] / counted['dense']:.1%}), {flops.total / flops.dense_total:.1%} of the FLOPs",
        *where,
    ]


def resume(
    path: Path,
    display: Display,
    ranks: Ranks | None = None,
    changes: Mapping[str, Mapping[str, Any]] | None = None,
) -> Outcome:
    """Goes on with a job, bit for bit where machine, versions, threads and ranks are the same.

    Args:
        path: The run's folder.
        display: Told of everything.
        ranks: As in `start`.
        changes: Options that are others from now on, by section; more `steps` extend the run.
    """
    with _opened(lambda: _reopen(path, changes or {}), ranks) as folder:
        config = Config() if folder is None else read_run_config(path / CONFIG)
        if ranks is not None:
            config = ranks.from_first(config)
        check_device(config.train.device)
        trainer = _build(config, make_task(config), ranks)
        before = environment() if folder is None else folder.environment()
        for name, (then, now) in differences(before, environment()).items():
            display.note(f"{name} was {then} when the run began and is {now}: it may not go on bit for bit")
        session = Session(trainer, _name(trainer), display, folder)
        if not session.restore() and config.run.weights_from is not None:
            take_weights(trainer, Path(config.run.weights_from))
        _tell_if_finished(session, path)
        return _run(session, display, path)


def _tell_if_finished(session: Session, path: Path) -> None:
    steps, step = session.trainer.config.train.steps, session.trainer.step
    if session.standing.has_ended and step == steps and not _missing(session):
        session.display.note(
            f"{path} is finished, with all of its {steps:,} steps; to extend it: "
            f"topkast train --resume {path} --steps {2 * step}"
        )


def _missing(session: Session) -> list[str]:
    """References that are not trained yet."""
    return [
        name for name in references.names(session.trainer.config) if name not in session.standing.references
    ]


def _reopen(path: Path, changes: Mapping[str, Mapping[str, Any]]) -> RunFolder:
    """The folder of a run whose options can be read and changed: if they cannot, other ranks are told."""
    folder = RunFolder.resume(path)
    try:
        before = config = read_run_config(path / CONFIG)
        if changes:
            config = _changed(config, changes, path)
        if config != before:
            folder.write_text(CONFIG, config.to_toml())
    except BaseException:
        folder.close()
        raise
    return folder


def _changed(config: Config, changes: Mapping[str, Mapping[str, Any]], path: Path) -> Config:
    train = dict(changes.get("train", {}))
    steps = train.pop("steps", None)
    config = config.with_values({**changes, "train": train})
    if steps is None:
        return config
    newest = checkpoint.latest(path).snapshot
    return extended(config, 0 if newest is None else newest.step, steps)


@contextmanager
def _opened(opening: Callable[[], RunFolder], ranks: Ranks | None) -> Iterator[RunFolder | None]:
    """The folder, opened by the first rank; None on others.

    Raises:
        FailedElsewhere: On other ranks, if it cannot be opened.
    """
    folder, problem = None, None
    if ranks is None or ranks.is_first:
        try:
            folder = opening()
        except (ValueError, OSError) as error:
            problem = error
    if ranks is not None and ranks.from_first(problem is not None) and problem is None:
        raise FailedElsewhere("the first rank cannot use the run folder")
    if problem is not None:
        raise problem
    with nullcontext() if folder is None else folder:
        yield folder


def _build(config: Config, task: Task, ranks: Ranks | None) -> Trainer:
    assert config.train.threads is not None
    torch.set_num_threads(config.train.threads)
    method = make_method(config)
    if ranks is not None:
        check_ranks(config, method, ranks.count)
    return Trainer(config, task, method, ranks)


def check_ranks(config: Config, method: Method | None, count: int) -> None:
    """Raises ValueError if so many ranks cannot train it together."""
    assert config.train.batch is not None
    if config.train.device != "cpu":
        raise ValueError(
            f"train.device must be cpu with several ranks, which talk by gloo, got {config.train.device!r}"
        )
    Share(0, count).of(config.train.batch)
    reason = None if method is None else why_alone(method)
    if reason is not None:
        raise ValueError(
            f"{config.method.method} {reason}, which {count} ranks cannot do together: train it in one "
            "process"
        )


def _run(session: Session, display: Display, path: Path) -> Outcome:
    config = session.trainer.config
    deadline = None if config.train.minutes is None else time.monotonic() + 60 * config.train.minutes
    with Interrupt(is_patient=session.trainer.ranks is not None) as interrupt:
        if not session.run(interrupt, deadline):
            return Outcome(path, False, interrupt.exit_code)
        if not session.standing.has_ended:
            _write_sample(session)
        session.end()
        for name in _missing(session):
            beside = _beside(session, name, display)
            if not beside.run(interrupt, deadline):
                return Outcome(path, False, interrupt.exit_code)
            if session.folder is not None:
                session.record(beside.as_reference())
            session.standing.references.append(name)
            session.save()
    return Outcome(path, True, 0)


def _write_sample(session: Session) -> None:
    """Text that the network writes, for the report."""
    if session.folder is None:
        return
    text = sample(session.trainer.model, session.trainer.task)
    if text is not None:
        session.folder.write_text(SAMPLE, text)


def _beside(session: Session, name: str, display: Display) -> Session:
    """The session of a reference."""
    trainer = session.trainer
    used = round(events.num_parameters(trainer)["used"])
    config, task = references.reference(trainer.config, trainer.task, name, used)
    other = _build(config, task, trainer.ranks)
    return Session(other, references.title(name) or _name(other), display)


def _name(trainer: Trainer) -> str:
    """For people: the method and its sparsities."""
    if trainer.method is None:
        return METHODS["dense"].title
    return title_of(trainer.config.method.method, trainer.method)
