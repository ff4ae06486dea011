"""TensorBoard, for those who watch runs there. The record of a run is metrics.jsonl; this is a copy."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from topkast.store.run import Event, Progress

FOLDER = "tensorboard"


def summary_writer() -> Any:
    """The writer of torch.

    Raises:
        ImportError: The package tensorboard is missing.
    """
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise ImportError(
            "--tensorboard needs tensorboard, which is not installed: pip install 'topkast[tensorboard]'"
        ) from error
    return SummaryWriter


class TensorBoard:
    """Writes what a run records as scalars: ``train/…``, ``eval/…`` and ``topkast/LAYER/…``.

    Args:
        run: The run's folder; the files go into a folder of it.
        step: Where the run is; what an interrupted one wrote beyond it is left out by TensorBoard.
        quality_name: "bits per byte" has the tag ``eval/bits_per_byte``.

    Raises:
        ImportError: The package tensorboard is missing.
    """

    def __init__(self, run: Path, step: int, quality_name: str) -> None:
        self._writer = summary_writer()(str(run / FOLDER), purge_step=step + 1 if step else None)
        self._quality = "eval/" + re.sub(r"\W+", "_", quality_name).strip("_")

    def write(self, event: Event) -> None:
        """One event of the record."""
        if not isinstance(event, Progress):
            return
        step = event.step
        for tag, value in self._scalars(event).items():
            if value is not None:
                self._writer.add_scalar(tag, value, step)
        self._writer.flush()

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
        self._writer.close()
