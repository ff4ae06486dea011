"""How far B∖A moves: by the optimizer's step times a factor, whatever else happens."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import topkast


def start(
    reservoir: Any = "stored", lr: float = 0.05, optimizer: Any = torch.optim.Adam, **options: Any
) -> tuple[Any, ...]:
    torch.manual_seed(0)
    with torch.device("meta" if reservoir == "implicit" else "cpu"):
        model = nn.Sequential(nn.Linear(20, 32), nn.Tanh(), nn.Linear(32, 6))
    method = topkast.TopKAST(0.8, 0.6, **{"exchange_every": 10, **options})
    sparse = topkast.sparsify(model, method, seed=1, reservoir=reservoir, engine="masked")
    return model, sparse, sparse.attach(optimizer(model.parameters(), lr=lr))


def train(model: Any, sparse: topkast.Handle, optimizer: Any, steps: range, scale: float = 1.0) -> None:
    for step in steps:
        x = torch.randn(16, 20, generator=torch.Generator().manual_seed(step))
        (scale * model(x).square().mean() + 1e-3 * sparse.penalty()).backward()
        optimizer.step()
        optimizer.zero_grad()


def moved(rate: float, **options: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """How far the values go in the first step, on A and on B∖A."""
    model, sparse, optimizer = start(exploration_rate=rate, exchange_every=100, refresh_every=100, **options)
    weight = sparse.weights["0"]
    before = weight.values.detach().clone()
    train(model, sparse, optimizer, range(1))
    step = weight.values.detach() - before
    return step[weight.active], step[~weight.active]


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.Adam, torch.optim.Adagrad])
def test_the_step_of_b_without_a_is_scaled_and_that_of_a_is_not(kind: Any) -> None:
    whole, short = moved(1.0, optimizer=kind), moved(0.25, optimizer=kind)
    assert torch.equal(short[0], whole[0])
    torch.testing.assert_close(short[1], 0.25 * whole[1], rtol=1e-3, atol=1e-7)
    assert not moved(0.0, optimizer=kind)[1].any()


def test_the_factor_rises_along_a_line() -> None:
    method = topkast.TopKAST(0.8, 0.6, exploration_rate=0.5, exploration_warmup=4)
    factors = [method.exploration_factor(step) for step in (1, 2, 3, 4, 5, 6, 1000)]
    assert factors == [0.0, 0.125, 0.25, 0.375, 0.5, 0.5, 0.5]
    assert topkast.TopKAST(0.8, 0.6).exploration_factor(1) == 1.0


def test_a_stored_and_an_implicit_reservoir_train_alike() -> None:
    implicit, stored = (start("implicit", exploration_rate=0.2, exploration_warmup=5) for _ in range(2))
    stored[1].materialise()
    for run in (implicit, stored):
        train(*run, range(25))
    for name, weight in implicit[1].weights.items():
        assert torch.equal(weight.theta(), stored[1].weights[name].theta())
        assert torch.equal(weight.active, stored[1].weights[name].active)


@pytest.mark.parametrize("fused", [False, True])
def test_a_step_that_is_skipped_moves_nothing_and_the_next_starts_from_there(fused: bool) -> None:
    model, sparse, optimizer = start(
        exploration_rate=0.5, optimizer=lambda p, lr: torch.optim.Adam(p, lr=lr, fused=fused)
    )
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    weight = sparse.weights["0"]
    for factor in (1.0, float("inf"), 1.0):
        before = weight.theta()
        optimizer.zero_grad()
        scaler.scale(model(torch.ones(4, 20)).square().mean() * factor).backward()
        scaler.step(optimizer)
        scaler.update()
        assert torch.equal(weight.theta(), before) == (factor != 1.0)
    assert weight.steps == 2


def test_a_step_to_infinity_leaves_what_is_frozen_alone() -> None:
    model, sparse, optimizer = start(
        exploration_rate=0.0, optimizer=torch.optim.SGD, refresh_every=100, exchange_every=100
    )
    weight = sparse.weights["0"]
    before = weight.values.detach().clone()
    train(model, sparse, optimizer, range(1), scale=float("inf"))
    assert torch.equal(weight.values[~weight.active], before[~weight.active])


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"exploration_rate": 1.5}, ValueError, r"`exploration_rate` must be in \[0, 1\], got 1.5"),
        ({"exploration_rate": -0.1}, ValueError, r"`exploration_rate` must be in \[0, 1\], got -0.1"),
        ({"exploration_rate": float("nan")}, ValueError, r"`exploration_rate` must be in \[0, 1\], got nan"),
        ({"exploration_rate": "0.1"}, TypeError, r"`exploration_rate` must be a number in \[0, 1\]"),
        ({"exploration_warmup": -1}, ValueError, r"`exploration_warmup` must be at least 0, got -1"),
        ({"exploration_warmup": 1.5}, TypeError, r"`exploration_warmup` must be a whole number of steps"),
    ],
    ids=str,
)
def test_what_cannot_be_is_refused(options: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        topkast.TopKAST(0.9, 0.8, **options)


def test_settings_from_before_explore_at_full_length() -> None:
    old = {"forward_sparsity": 0.9, "backward_sparsity": 0.8, "refresh_every": 7, "explore_until": None}
    method = topkast.TopKAST.from_settings(old)
    assert (method.exploration_rate, method.exploration_warmup) == (1.0, 0)
