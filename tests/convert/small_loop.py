"""A small sparse model and its loss, for tests of how loops drive it."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

import topkast


def setup(refresh_every: int = 2, **options: Any) -> tuple[nn.Sequential, topkast.Handle]:
    model = nn.Sequential(nn.Linear(8, 12), nn.Tanh(), nn.Linear(12, 3))
    return model, topkast.sparsify(
        model, topkast.TopKAST(0.8, 0.5, refresh_every=refresh_every, exchange_every=refresh_every), **options
    )


def loss_of(model: nn.Module) -> torch.Tensor:
    return model(torch.randn(16, 8)).square().mean()


def steps(sparse: topkast.Handle) -> set[int]:
    return {w.steps for w in sparse.weights.values()}
