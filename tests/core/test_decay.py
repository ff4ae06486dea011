"""The penalty decoupled from the gradient."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from torch import nn

import topkast
from topkast.convert.recipe import follow_recipe, recipe


def start(decay: float, lr: float, **options: Any) -> tuple[nn.Sequential, topkast.Handle, Any]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(20, 32), nn.Tanh(), nn.Linear(32, 6))
    method = topkast.TopKAST(0.8, 0.6, decay=decay, **options)
    sparse = topkast.sparsify(model, method, engine="masked")
    groups = sparse.param_groups(lr=lr, rate="sqrt")
    return model, sparse, sparse.attach(torch.optim.SGD(groups))


def test_each_set_shrinks_by_its_share_with_the_rate_of_its_group() -> None:
    model, sparse, optimizer = start(0.5, 0.01, refresh_every=100)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0 if step == 0 else 0.5)
    weight = sparse.weights["0"]
    density = weight.counts.forward_density
    rate = 0.01 * density**-0.5
    for factor in (1.0, 0.5):
        before = weight.values.detach().clone()
        model[0](torch.zeros(1, 20)).sum().mul(0).backward()  # no gradient but zero
        optimizer.step()
        schedule.step()
        share = torch.where(weight.active, 1.0, 1 / density) * factor * rate * 0.5
        torch.testing.assert_close(weight.values.detach(), before - share * before, rtol=1e-3, atol=1e-6)


def test_a_share_beyond_all_of_it_ends_at_zero() -> None:
    model, sparse, optimizer = start(100.0, 1.0, refresh_every=100)
    model[0](torch.zeros(1, 20)).sum().mul(0).backward()
    optimizer.step()
    assert not sparse.weights["0"].values.detach().any()


def test_what_is_frozen_does_not_decay() -> None:
    model, sparse, optimizer = start(0.5, 0.1, refresh_every=100, explore_until=1)
    weight = sparse.weights["0"]
    for moves in (True, False):
        before = weight.values.detach().clone()
        model[0](torch.zeros(1, 20)).sum().mul(0).backward()
        optimizer.step()
        assert torch.equal(weight.values[~weight.active], before[~weight.active]) != moves
        assert not torch.equal(weight.values[weight.active], before[weight.active])


def test_nobody_is_reminded_of_a_penalty_that_is_applied() -> None:
    model, sparse, optimizer = start(0.5, 0.01, exchange_every=1)
    assert not sparse.expects_penalty
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model(torch.randn(4, 20)).sum().backward()
        optimizer.step()


def test_a_recipe_keeps_it_and_one_without_it_has_none() -> None:
    _, sparse, _ = start(0.5, 0.01, exploration_rate=0.25)
    data = recipe(sparse)

    def again() -> topkast.TopKAST:
        model = nn.Sequential(nn.Linear(20, 32), nn.Tanh(), nn.Linear(32, 6))
        method = follow_recipe(model, data).method
        assert isinstance(method, topkast.TopKAST)
        return method

    assert again() == sparse.method
    for name in ("decay", "exploration_rate", "exploration_warmup"):  # as written by earlier versions
        del data["method"]["settings"][name]
    assert (again().decay, again().exploration_rate) == (0.0, 1.0)


@pytest.mark.parametrize("bad", [-0.1, float("inf"), float("nan")])
def test_what_cannot_be_a_decay_is_refused(bad: float) -> None:
    with pytest.raises(ValueError, match="`decay` must be at least 0 and finite, got"):
        topkast.TopKAST(0.9, 0.8, decay=bad)
    with pytest.raises(TypeError, match="`decay` must be a number, got 'x'"):
        topkast.TopKAST(0.9, 0.8, decay="x")  # type: ignore[arg-type]
