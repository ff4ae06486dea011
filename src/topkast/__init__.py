"""topkast: always-sparse training of neural networks (Top-KAST, NeurIPS 2020)."""

# torch first: whatever is loaded after it shares its OpenMP runtime.
import torch  # noqa: F401  # isort: skip

from importlib.metadata import version
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING

from topkast import _moved, distributed, models, nn  # noqa: F401
from topkast.convert import Handle, densify, sparsify
from topkast.convert.followers import SlotAverageWarning
from topkast.convert.reminders import NoPenaltyWarning, NotAttachedWarning
from topkast.core.anneal import Anneal, Stages
from topkast.core.initial import Normal, Scaled, TruncatedNormal, Uniform
from topkast.kernels.machine import keep_freed_memory
from topkast.methods import (
    DNW,
    DSR,
    L0,
    SET,
    SNFS,
    STR,
    DeepR,
    Dense,
    Method,
    Pruning,
    RigL,
    Static,
    TopKAST,
    VariationalDropout,
)

if TYPE_CHECKING:
    from topkast.train.trained import Trained

__version__ = version("topkast")

__all__ = [
    "DNW",
    "DSR",
    "L0",
    "SET",
    "SNFS",
    "STR",
    "Anneal",
    "DeepR",
    "Dense",
    "Handle",
    "Method",
    "NoPenaltyWarning",
    "Normal",
    "NotAttachedWarning",
    "Pruning",
    "RigL",
    "Scaled",
    "SlotAverageWarning",
    "Stages",
    "Static",
    "TopKAST",
    "TruncatedNormal",
    "Uniform",
    "VariationalDropout",
    "__version__",
    "densify",
    "distributed",
    "keep_freed_memory",
    "load",
    "models",
    "nn",
    "sparsify",
]


def load(path: str | PathLike[str], checkpoint: str = "last", engine: str | None = None) -> "Trained":
    """Takes a trained network out of a run, or out of a compressed export.

    The network is sparse and in evaluation mode. To train it further, create an optimizer and attach it with
    ``loaded.sparse.attach(optimizer)``; an export has A alone, so its sets then stay as they are.

    Args:
        path: The folder of a run of `topkast train`, or a file of `topkast export --format compressed`.
        checkpoint: Of a run: "last", "best" by held-out quality, or the name of one.
        engine: What to compute with, in place of the run's own; see `sparsify`.

    Returns:
        `model`, `sparse` (the handle; None for a dense network), `config`, `step`, `quality`, and for text
        `encode` and `decode`.

    Raises:
        ValueError: It is neither, there is no such checkpoint, or a file is damaged.
        OSError: A file cannot be read.
    """
    from topkast.train.exported import load_export
    from topkast.train.trained import load as load_run

    place = Path(path)
    if not place.is_file():
        return load_run(place, checkpoint, engine=engine)
    if checkpoint != "last":
        raise ValueError(f"{place} is a file, with one network: `checkpoint` is for runs, got {checkpoint!r}")
    return load_export(place, engine=engine)
