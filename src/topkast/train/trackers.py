"""Trackers: programs of others that show the record of a run while it goes. `TRACKERS` lists them."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from topkast.store.run import Event, Progress
from topkast.train.config import Config
from topkast.train.sections import SECTIONS


class Tracker(ABC):
    """Is given the record as scalars: ``train/…``, ``eval/…`` and ``topkast/LAYER/…``."""

    @classmethod
    @abstractmethod
    def check(cls) -> None:
        """Raises ImportError if its package is missing: before a run begins."""

    @abstractmethod
    def __init__(self, run: Path, step: int, config: Config) -> None:
        """Begins, or goes on.

        Args:
            run: The run's folder; files go into a folder of it.
            step: Where the run is. What an interrupted one wrote beyond it does not count.
            config: The run's options.
        """

    @abstractmethod
    def write(self, scalars: Mapping[str, float], step: int) -> None:
        """Scalars of one moment."""

    @abstractmethod
    def close(self) -> None:
        """Nothing more will come."""


class TensorBoard(Tracker):
    """Files for TensorBoard, in the folder ``tensorboard`` of the run."""

    @classmethod
    def check(cls) -> None:
        cls._writer_type()

    @staticmethod
    def _writer_type() -> Any:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise ImportError(
                "--track tensorboard needs tensorboard, which is not installed: "
                "pip install 'topkast[tensorboard]'"
            ) from error
        return SummaryWriter

    def __init__(self, run: Path, step: int, config: Config) -> None:
        purge = step + 1 if step else None
        self._writer = self._writer_type()(str(run / "tensorboard"), purge_step=purge)

    def write(self, scalars: Mapping[str, float], step: int) -> None:
        for tag, value in scalars.items():
            self._writer.add_scalar(tag, value, step)
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()


class WandB(Tracker):
    """A run of Weights & Biases, in the project ``topkast`` unless WANDB_PROJECT names another.

    With WANDB_MODE=offline nothing is sent: the files in the folder ``wandb`` of the run can be synced later.
    """

    @classmethod
    def check(cls) -> None:
        cls._module()

    @staticmethod
    def _module() -> Any:
        try:
            import wandb  # pyright: ignore[reportMissingImports]
        except ImportError as error:
            raise ImportError(
                "--track wandb needs wandb, which is not installed: pip install wandb"
            ) from error
        return wandb

    def __init__(self, run: Path, step: int, config: Config) -> None:
        options = {name: vars(getattr(config, name)) for name in SECTIONS}
        kept, wandb = run / "wandb-id.txt", self._module()
        again = {"id": kept.read_text().strip(), "resume": "allow"} if step and kept.is_file() else {}
        self._run = wandb.init(dir=str(run), name=run.name, config=options, **again)
        kept.write_text(f"{self._run.id}\n")

    def write(self, scalars: Mapping[str, float], step: int) -> None:
        self._run.log(dict(scalars), step=step)

    def close(self) -> None:
        self._run.finish()


TRACKERS: dict[str, type[Tracker]] = {"tensorboard": TensorBoard, "wandb": WandB}


def names(config: Config) -> list[str]:
    """Those that a run has."""
    wanted = list(config.run.track or ())
    return wanted + ["tensorboard"] * (config.run.tensorboard and "tensorboard" not in wanted)


class Trackers:
    """All trackers of a run.

    Args:
        config: Says which.
        run: Its folder.
        step: Where it is.
        quality_name: "bits per byte" has the tag ``eval/bits_per_byte``.

    Raises:
        ImportError: A package is missing.
    """

    def __init__(self, config: Config, run: Path, step: int, quality_name: str) -> None:
        self._all = [TRACKERS[name](run, step, config) for name in names(config)]
        self._quality = "eval/" + re.sub(r"\W+", "_", quality_name).strip("_")

    def write(self, event: Event) -> None:
        """One event of the record."""
        if not isinstance(event, Progress):
            return
        for step, loss in event.losses:
            for tracker in self._all:
                tracker.write({"train/loss_of_10_steps": loss}, step)
        scalars = {tag: value for tag, value in self._scalars(event).items() if value is not None}
        for tracker in self._all:
            tracker.write(scalars, event.step)

    def _scalars(self, event: Progress) -> dict[str, float | None]:
        scalars: dict[str, float | None] = {
            "train/loss": event.loss,
            "train/lr": event.lr,
            "train/seconds": event.seconds,
            "train/flops": event.flops,
            self._quality: event.quality,
        }
        for name, layer in event.layers.items():
            for key, value in vars(layer).items():  # NaN is the mean of nothing
                scalars[f"topkast/{name}/{key}"] = None if value != value else value
        return scalars

    def close(self) -> None:
        """The run is over, in whatever way."""
        for tracker in self._all:
            tracker.close()
