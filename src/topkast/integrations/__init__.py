"""Thin layers between topkast and training frameworks, and what they share.

A module here needs its framework; this one needs none.
"""

from __future__ import annotations

import math

from topkast.convert import Handle
from topkast.core.penalty import check_power


def check_penalty(penalty: float, power: int) -> None:
    """Raises ValueError unless these are a coefficient λ and a power of the penalty."""
    if not (math.isfinite(penalty) and penalty >= 0):
        raise ValueError(f"`penalty` must be a number ≥ 0, got {penalty!r}")
    check_power(power)


def figures(sparse: Handle) -> dict[str, float]:
    """The few numbers of a sparse model that are worth a line in any log, over all its sparse weights.

    See `cost.parameters.LayerStats` for what they mean.
    """
    stats = sparse.stats().values()
    total = sum(s.numel for s in stats)
    outside = sum(s.numel - s.backward for s in stats)
    used = sum(s.reservoir_used * (s.numel - s.backward) for s in stats)
    return {
        "topkast/forward_density": sum(s.forward for s in stats) / total,
        "topkast/backward_density": sum(s.backward for s in stats) / total,
        "topkast/changed": sum(s.changed * s.numel for s in stats) / total,
        "topkast/exchanged": sum(s.exchanged * s.numel for s in stats) / total,
        "topkast/reservoir_used": used / outside if outside else 0.0,
    }
