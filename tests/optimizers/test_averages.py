"""torch_ema, which keeps an average as a list of clones: noticed, and right when it is followed."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import topkast

torch_ema = pytest.importorskip("torch_ema", reason="run `make test-optimizers`")


def train(follows: bool) -> tuple[float, float]:
    """The largest difference between outputs of the model and of its average, which has nothing to average."""
    model = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 5)).double()
    method = topkast.TopKAST(0.9, 0.8, refresh_every=1, exchange_every=1, exploration="random")
    sparse = topkast.sparsify(model, method)
    optimizer = sparse.attach(torch.optim.SGD(model.parameters(), lr=0.0))
    average = torch_ema.ExponentialMovingAverage(model.parameters(), decay=0.9)
    if follows:
        sparse.follow(average.shadow_params)
    x = torch.randn(16, 20, dtype=torch.float64)
    for _ in range(20):
        model(x).square().mean().backward()
        optimizer.step()
        average.update()
    before = model(x).detach()
    with average.average_parameters():
        return float((model(x).detach() - before).abs().max()), float(before.abs().max())


def test_a_followed_average_of_what_does_not_move_is_the_same() -> None:
    difference, size = train(follows=True)
    assert difference < 1e-12 < size


def test_an_average_that_does_not_follow_is_noticed() -> None:
    with pytest.warns(topkast.SlotAverageWarning, match="shadow_params"):
        difference, size = train(follows=False)
    assert difference > 0.1 * size  # which is why it is noticed
