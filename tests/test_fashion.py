"""Real data: Top-KAST against a fixed random mask of the same size on Fashion-MNIST."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import topkast
from topkast.data.images import read_images
from topkast.models import MLP

EPOCHS, BATCH, LR, PENALTY = 12, 128, 0.05, 1e-4


def accuracy_after_training(
    method: topkast.Method,
    seed: int,
    data: tuple[Tensor, Tensor, Tensor, Tensor],
    epochs: int = EPOCHS,
    reservoir: Any = "stored",
) -> float:
    """Test accuracy in percent of an MLP 784-512-256-10 whose two hidden layers are sparse."""
    x, y, x_test, y_test = data
    torch.manual_seed(seed)
    with torch.device("meta" if reservoir == "implicit" else "cpu"):
        model = MLP([784, 512, 256, 10])
    sparse = topkast.sparsify(model, method, keep_dense="last", reservoir=reservoir)
    optimizer = sparse.attach(torch.optim.SGD(model.parameters(), lr=LR, momentum=0.9))
    steps = epochs * (len(x) // BATCH)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda s: 0.5 * (1 + math.cos(math.pi * s / steps))
    )
    for _ in range(epochs):
        for chosen in torch.randperm(len(x))[: len(x) // BATCH * BATCH].split(BATCH):
            loss = F.cross_entropy(model(x[chosen]), y[chosen]) + PENALTY * sparse.penalty()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            schedule.step()
    for weight in sparse.weights.values():
        assert int(weight.active.sum()) == weight.counts.forward == round(0.02 * weight.numel())
    with torch.no_grad():
        return 100 * float((model(x_test).argmax(1) == y_test).float().mean())


def load(folder: Path) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    x, y = read_images(folder / "fashion-mnist", "train")
    x_test, y_test = read_images(folder / "fashion-mnist", "t10k")
    mean, std = x.mean(), x.std()
    return (x - mean) / std, y, (x_test - mean) / std, y_test


@pytest.mark.slow
def test_topkast_beats_a_fixed_random_mask_by_a_point(data_folder: Path) -> None:
    data = load(data_folder)
    assert len(data[0]) == 60_000
    results: dict[str, list[float]] = {"Top-KAST": [], "static": []}
    for seed in range(3):
        method = topkast.TopKAST(0.98, 0.95, refresh_every=10, exchange_every=10)
        results["Top-KAST"].append(accuracy_after_training(method, seed, data))
        results["static"].append(accuracy_after_training(topkast.Static(0.98), seed, data))
    means = {name: sum(r) / 3 for name, r in results.items()}
    print(f"\nFashion-MNIST, 98/95 %, {EPOCHS} epochs: {results}, means {means}")
    assert means["Top-KAST"] >= means["static"] + 1.0


@pytest.mark.slow
def test_an_implicit_reservoir_is_as_good_as_a_stored_one(data_folder: Path) -> None:
    """Over 3 seeds the means differ by no more than three standard errors of their difference."""
    data = load(data_folder)
    method = topkast.TopKAST(0.98, 0.95, refresh_every=10, exchange_every=10)
    results = {
        kind: torch.tensor([accuracy_after_training(method, seed, data, reservoir=kind) for seed in range(3)])
        for kind in ("stored", "implicit")
    }
    print(f"\nFashion-MNIST, 98/95 %, {EPOCHS} epochs: { {k: r.tolist() for k, r in results.items()} }")
    error = float(torch.stack([r.var() / 3 for r in results.values()]).sum().sqrt())
    assert abs(float(results["stored"].mean() - results["implicit"].mean())) < max(3 * error, 0.3)


def test_sparse_training_beats_a_classifier_without_training(data_folder: Path) -> None:
    """A quick look at the same thing, against the nearest class mean: what needs no training at all."""
    x, y, x_test, y_test = load(data_folder)
    x, y = x[:20_000], y[:20_000]
    means = torch.stack([x[y == label].flatten(1).mean(0) for label in range(10)])
    nearest = torch.cdist(x_test.flatten(1), means).argmin(1)
    bar = 100 * float((nearest == y_test).float().mean())
    method = topkast.TopKAST(0.98, 0.95, refresh_every=10, exchange_every=10)
    assert accuracy_after_training(method, 0, (x, y, x_test, y_test), epochs=3) > bar
