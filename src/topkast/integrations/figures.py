"""The few numbers of a sparse model that are worth a line in any framework's log."""

from __future__ import annotations

from topkast.convert import Handle


def figures(sparse: Handle) -> dict[str, float]:
    """Over all sparse weights; see `cost.parameters.LayerStats` for what they mean."""
    stats = sparse.stats().values()
    total = sum(s.numel for s in stats)
    outside = sum(s.numel - s.backward for s in stats)
    used = sum(s.reservoir_used * (s.numel - s.backward) for s in stats)
    return {
        "topkast/forward_density": sum(s.forward for s in stats) / total,
        "topkast/backward_density": sum(s.backward for s in stats) / total,
        "topkast/changed": sum(s.changed * s.numel for s in stats) / total,
        "topkast/reservoir_used": used / outside if outside else 0.0,
    }
