"""A session: a trainer's steps and everything around them: record, evaluations, checkpoints, signals."""

from __future__ import annotations

import math
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from topkast.store import checkpoint, snapshot
from topkast.store.checkpoint import Latest, Retention
from topkast.store.record import METRICS, as_json, training_length
from topkast.store.run import Bytes, End, Event, Extension, Progress, Reference
from topkast.text import short
from topkast.train import events
from topkast.train.display import Display
from topkast.train.events import Spending
from topkast.train.extension import describe, num_extensions
from topkast.train.folder import RunFolder
from topkast.train.trackers import Trackers
from topkast.train.trainer import NotFinite, Trainer
from topkast.train.workers import Interrupt


class Stopped(RuntimeError):
    """The run cannot go on by itself; the message says why, and from where it can."""


@dataclass
class Standing:
    """What a run has used and seen so far; part of its checkpoints.

    Attributes:
        seconds: Of training, evaluations apart.
        flops: Spent.
        flops_per_step: At the sets of the last evaluation.
        losses: Since the last evaluation.
        quality: At the last evaluation.
        has_ended: Whether the last line of the network itself is written.
        references: Names of those that are done.
        extensions: How often the run was extended, as far as this checkpoint knows.
        best: The best quality of all evaluations.
        waited: Evaluations since then, or since the run was resumed.
    """

    seconds: float = 0.0
    flops: float = 0.0
    flops_per_step: float = 0.0
    losses: list[float] = field(default_factory=list)
    quality: float | None = None
    has_ended: bool = False
    references: list[str] = field(default_factory=list)
    extensions: int = 0
    best: float | None = None
    waited: int = 0

    @classmethod
    def checked(cls, kept: dict[str, Any]) -> Standing:
        """What a checkpoint has kept.

        Raises:
            ValueError: Something of another kind, which is named.
        """
        for name, value in kept.items():
            if name not in _RULES:
                raise ValueError(f"it keeps {short(name)}, which is not known")
            rule, holds = _RULES[name]
            if not holds(value):
                raise ValueError(f"`{name}` must be {rule}, got {short(value)}")
        return cls(**kept)


def _is_amount(value: Any) -> bool:
    return type(value) in (int, float) and 0 <= value <= sys.float_info.max


def _is_list(value: Any, kinds: tuple[type, ...]) -> bool:
    return type(value) is list and all(type(item) in kinds for item in value)


# Of a `Standing` in a checkpoint: what each must be.
_RULES: dict[str, tuple[str, Callable[[Any], bool]]] = {
    **dict.fromkeys(("seconds", "flops", "flops_per_step"), ("a finite number, at least 0", _is_amount)),
    "losses": ("a list of numbers", lambda value: _is_list(value, (float,))),
    **dict.fromkeys(
        ("quality", "best"), ("a number or nothing", lambda value: value is None or type(value) is float)
    ),
    **dict.fromkeys(
        ("extensions", "waited"), ("a whole number, at least 0", lambda n: type(n) is int and n >= 0)
    ),
    "has_ended": ("true or false", lambda value: type(value) is bool),
    "references": ("a list of names", lambda value: _is_list(value, (str,))),
}


class Session:
    """One network from its first step, or from a checkpoint, to its last.

    Where several ranks train it each has a session, and all do the same; the first alone evaluates, and has
    the folder.

    Args:
        trainer: The network, freshly built.
        name: For tables and figures.
        display: Told of everything.
        folder: Where it is kept; None for a network that is trained beside another and keeps nothing, and
            for all ranks but the first.
    """

    def __init__(
        self, trainer: Trainer, name: str, display: Display, folder: RunFolder | None = None
    ) -> None:
        self.trainer, self.name, self.display, self.folder = trainer, name, display, folder
        self._ranks = trainer.ranks
        flops = events.count_flops(trainer)
        self.standing = Standing(flops_per_step=float(flops.total))
        self._spending = Spending(trainer, flops)
        self.curve: list[Progress] = []
        self._start = events.start(trainer, name)
        self._trackers: Trackers | None = None

    # ---- checkpoints ----------------------------------------------------------------------------------

    def save(self) -> Path | None:
        """Writes a checkpoint of now."""
        if self.folder is None:
            self.trainer.task.state_dict()  # of which every rank has a part
            return None
        kept = {**asdict(self.standing), "metrics": self.folder.metrics.sync()}
        state = snapshot.take(
            self.trainer.step, self.trainer.parts(), generators={"batches": self.trainer.batches}, kept=kept
        )
        quality = self.standing.quality
        score = quality if quality is None or self.trainer.task.higher_is_better else -quality
        keep = Retention(last=self.trainer.config.run.keep)
        return checkpoint.write(self.folder.path, state, score=score, retention=keep)

    def restore(self) -> bool:
        """Goes back to the newest good checkpoint, if there is one; damaged ones are reported."""
        found = Latest() if self.folder is None else checkpoint.latest(self.folder.path)
        if self._ranks is not None:  # the others need not even see the files
            found = self._ranks.from_first(found)
        for path, problem in found.damaged.items():
            self.display.note(f"checkpoint {path.name} is damaged and passed over: {problem}")
        if found.snapshot is None:
            self._cut(0)
            return False
        try:
            kept = snapshot.restore(
                found.snapshot, self.trainer.parts(), generators={"batches": self.trainer.batches}
            )
            length = kept.pop("metrics", None)
            self.standing = Standing.checked(kept)
            if type(length) is not int:
                raise ValueError(f"`metrics` must be a whole number, got {short(length)}")
            self._cut(length)
        except ValueError as error:
            raise ValueError(
                f"the checkpoint {found.path} cannot be used: {error}. Without it, the run goes on from the "
                "one before"
            ) from error
        self.trainer.step = found.snapshot.step
        self._extend()
        return True

    def _extend(self) -> None:
        """Where the run was extended since the checkpoint: its record has no end, and rates are others."""
        config = self.trainer.config
        if not config.train.extended:
            return
        self.trainer.follow_schedule()
        if self.standing.extensions == num_extensions(config):
            return
        self.standing.extensions = num_extensions(config)
        self.standing.has_ended, self.standing.references = False, []
        if self.folder is not None:
            self.folder.metrics.cut(training_length(self.folder.path / METRICS))
        assert config.train.steps is not None
        self.record(Extension(self.trainer.step, config.train.steps))
        self.display.note(describe(config))
        self.save()

    def _cut(self, length: int) -> None:
        if self.folder is not None:
            self.folder.metrics.cut(length)

    # ---- training -------------------------------------------------------------------------------------

    def run(self, interrupt: Interrupt, deadline: float | None = None) -> bool:
        """Trains to the last step, or until it is interrupted or out of time.

        Returns:
            Whether the last step was reached.

        Raises:
            Stopped: The loss or a gradient is not finite.
        """
        steps = self.trainer.config.train.steps
        assert steps is not None
        if self.folder is not None:
            name, config = self.trainer.task.quality_name, self.trainer.config
            self._trackers = Trackers(config, self.folder.path, self.trainer.step, name)
        if self.trainer.step == 0:
            self.record(self._start)
        if self.trainer.step < steps:
            self.display.begin(self.name, self._start, self.trainer.step)
        try:
            while self.trainer.step < steps:
                self._step()
                is_late = deadline is not None and time.monotonic() > deadline
                is_idle = self._is_idle()
                if self._ranks is not None:  # they stop together
                    number, late, idle = self._ranks.largest([interrupt.signal or 0, is_late, is_idle])
                    interrupt.signal, is_late, is_idle = number or None, bool(late), bool(idle)
                if interrupt.signal is not None:
                    self._stop(f"{signal.Signals(interrupt.signal).name} came")
                    return False
                if is_late or (is_idle and self.trainer.step < steps):
                    patience = self.trainer.config.train.patience
                    idle = f"its quality was no better for {patience} evaluations"
                    if not is_late:
                        self.standing.waited = 0  # resumed, it has as many again
                    self._stop("its time was over" if is_late else idle, is_hurried=False)
                    return False
                if self.trainer.step % (self.trainer.config.run.checkpoint_every or steps) == 0:
                    self.save()
        finally:
            self.display.finish()
            if self._trackers is not None:
                self._trackers.close()
        return True

    def _is_idle(self) -> bool:
        """Whether the quality has not been better for as many evaluations as the run is patient."""
        patience = self.trainer.config.train.patience
        return patience is not None and self.standing.waited >= patience

    def _stop(self, why: str, *, is_hurried: bool = True) -> None:
        """Saves, then says why in the record: a resumed run goes back to before these lines."""
        self.save()
        if self.folder is None:
            return
        if not is_hurried and self.standing.losses:
            self._evaluate()
        self.record(self._last_line(why, None if is_hurried else events.held(self.trainer)))

    def _last_line(self, stopped: str | None, bytes_held: Bytes | None) -> End:
        per_step = self.standing.seconds / max(1, self.trainer.step)
        return events.end(self.trainer, seconds_per_step=per_step, bytes_held=bytes_held, stopped=stopped)

    def _step(self) -> None:
        config = self.trainer.config
        started = time.perf_counter()
        try:
            loss = self.trainer.take_step()
        except NotFinite as error:
            self.record(self._last_line(str(error), None))
            raise Stopped(f"{error}; the step was not taken. {self._way_out()}") from error
        self.standing.seconds += time.perf_counter() - started
        self.standing.flops += self._spending.of(self.trainer.step, self.standing.flops_per_step)
        self.standing.losses.append(loss)
        step = self.trainer.step
        self.display.step(step, loss)
        if step % (config.run.evaluate_every or 1) == 0 or step == config.train.steps:
            self._evaluate()

    def _evaluate(self) -> None:
        standing = self.standing
        if self._ranks is not None and not self._ranks.is_first:
            standing.losses = []
            return
        standing.quality = self.trainer.quality()
        sign = 1 if self.trainer.task.higher_is_better else -1
        is_better = standing.best is None or sign * standing.quality > sign * standing.best
        standing.best, standing.waited = (
            (standing.quality, 0) if is_better else (standing.best, standing.waited + 1)
        )
        losses, standing.losses = standing.losses, []
        event = events.progress(
            self.trainer,
            losses=losses,
            quality=standing.quality,
            seconds=standing.seconds,
            flops=standing.flops,
        )
        self.curve.append(event)
        self.record(event)
        self.display.progress(event)
        if not self._spending.is_scheduled:
            standing.flops_per_step = float(events.count_flops(self.trainer).total)

    def end(self) -> None:
        """Writes the last line of the record."""
        event = self._last_line(None, events.held(self.trainer))
        if not self.standing.has_ended:
            self.record(event)
            self.standing.has_ended = True
            self.save()

    def as_reference(self) -> Reference:
        """What another run says of this one."""
        return Reference(
            name=self.name,
            quality=math.nan if self.standing.quality is None else self.standing.quality,
            seconds_per_step=self.standing.seconds / max(1, self.trainer.step),
            bytes=events.held(self.trainer).sparse,
            parameters=events.num_parameters(self.trainer)["used"],
            points=tuple(self.curve),
            loss=self.curve[-1].loss if self.curve else math.nan,
            steps=self.trainer.step,
        )

    def record(self, event: Event) -> None:
        """Writes an event down, where there is a folder."""
        if self.folder is not None:
            self.folder.metrics.append(as_json(event))
        if self._trackers is not None:
            self._trackers.write(event)

    def _way_out(self) -> str:
        if self.folder is None:
            return "Try a smaller learning rate."
        found = checkpoint.latest(self.folder.path)
        if found.path is None:
            return "There is no checkpoint yet: start again with a smaller learning rate."
        return (
            f"The last good checkpoint is {found.path}. Training from it would end in the same way: "
            "start anew with a smaller learning rate"
        )
