"""How many parameters a sparse model has, as papers count them."""

from __future__ import annotations

from collections.abc import Mapping

from torch import nn

from topkast.core.accounting import Parameters
from topkast.core.weight import SparseWeight


def parameters(model: nn.Module, weights: Mapping[str, SparseWeight]) -> Parameters:
    """Σ|A| and everything that is dense, beside the dense model's. Tied weights count once."""
    ours = {id(weight.values) for weight in weights.values()}
    return Parameters(
        sparse=sum(weight.counts.forward for weight in weights.values()),
        sparse_numel=sum(weight.numel() for weight in weights.values()),
        rest=sum(p.numel() for p in model.parameters() if id(p) not in ours),
    )
