"""topkast: always-sparse training of neural networks (Top-KAST, NeurIPS 2020)."""

# torch first: whatever is loaded after it shares its OpenMP runtime.
import torch  # noqa: F401  # isort: skip

from importlib.metadata import version

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
)

__version__ = version("topkast")

__all__ = [
    "DNW",
    "DSR",
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
    "__version__",
    "densify",
    "distributed",
    "keep_freed_memory",
    "models",
    "nn",
    "sparsify",
]
