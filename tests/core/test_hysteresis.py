"""A challenger must be some times as large as what it displaces: A = TopK(s·|θ|), exactly, always."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import topkast
from topkast.core.select import top_k, top_k_portable


def start(reservoir: Any = "stored", engine: str = "masked", **options: Any) -> tuple[Any, topkast.Handle]:
    torch.manual_seed(0)
    with torch.device("meta" if reservoir == "implicit" else "cpu"):
        model = nn.Sequential(nn.Linear(20, 32), nn.Tanh(), nn.Linear(32, 6))
    method = topkast.TopKAST(0.8, 0.6, **options)
    return model, topkast.sparsify(model, method, seed=1, engine=engine, reservoir=reservoir)


def train(model: Any, sparse: topkast.Handle, optimizer: Any, steps: range) -> None:
    for step in steps:
        x = torch.randn(16, 20, generator=torch.Generator().manual_seed(step))
        (model(x).square().mean() + 1e-3 * sparse.penalty()).backward()
        optimizer.step()
        optimizer.zero_grad()


def placed(
    values: list[float], active: list[bool], hysteresis: float
) -> tuple[nn.Module, topkast.Handle, Any]:
    """One layer of 8 weights, |A| = 2 and |B| = 4, with these values and flags on B."""
    model = nn.Sequential(nn.Linear(8, 1, bias=False))
    with torch.no_grad():
        model[0].weight.copy_(torch.tensor([[4.0, 3.0, 2.0, 1.0, 0.4, 0.3, 0.2, 0.1]]))
    sparse = topkast.sparsify(model, topkast.TopKAST(0.75, 0.5, hysteresis=hysteresis), engine="masked")
    weight = sparse.weights["0"]
    with torch.no_grad():
        weight.values.copy_(torch.tensor(values))
        weight.active.copy_(torch.tensor(active))
    return model, sparse, sparse.attach(torch.optim.SGD(model.parameters(), lr=0.0))


@pytest.mark.parametrize(
    ("values", "hysteresis", "wanted"),
    [
        ([1.0, 1.0, 1.9, 0.5], 2.0, [0, 1]),  # not twice as large as any
        ([1.0, 1.0, 2.1, 0.5], 2.0, [0, 2]),  # takes the place of one; the smaller position stays
        ([1.0, 1.0, 2.0, 2.0], 2.0, [0, 1]),  # as large as they count: ties go to the smaller position
        ([-1.0, 1.5, 2.1, -3.1], 2.0, [1, 3]),  # 3.1 takes the place of the least; 2.1 < 2·1.5
        ([1.0, 1.0, 1.1, 0.5], 1.0, [0, 2]),  # the paper's letter
    ],
)
def test_who_takes_whose_place(values: list[float], hysteresis: float, wanted: list[int]) -> None:
    model, sparse, optimizer = placed(values, [True, True, False, False], hysteresis)
    sparse.expects_penalty = False
    model(torch.ones(1, 8)).sum().backward()
    optimizer.step()
    weight = sparse.weights["0"]
    assert weight.indices[weight.active].tolist() == wanted
    assert int(weight.early) == 0


def test_what_comes_in_early_is_larger_than_the_least_of_a_as_that_counts() -> None:
    """0.4 is the largest in C: with a factor of 2 it belongs in A once the least of A is at 0.2."""
    for least, early in ((0.21, 0), (0.2, 1), (0.1, 1)):
        model, sparse, optimizer = placed([4.0, least, 0.15, 0.15], [True, True, False, False], 2.0)
        sparse.expects_penalty = False
        model(torch.ones(1, 8)).sum().backward()
        optimizer.step()
        weight = sparse.weights["0"]
        assert int(weight.early) == early
        # A tie, 0.4 with 2·0.2, goes to the smaller position.
        assert weight.indices[weight.active].tolist() == ([0, 4] if least < 0.2 else [0, 1])


@pytest.mark.parametrize("reservoir", ["stored", "implicit"])
@settings(max_examples=25)  # each trains a network
@given(
    st.floats(1e-3, 0.5),
    st.floats(1.0, 4.0),
    st.sampled_from([(1, 1), (1, 5), (1, 100), (2, 4)]),
    st.booleans(),
)
def test_a_is_the_top_k_of_what_counts_after_every_refresh(
    reservoir: str, lr: float, hysteresis: float, clocks: tuple[int, int], is_sgd: bool
) -> None:
    model, sparse = start(reservoir, refresh_every=clocks[0], exchange_every=clocks[1], hysteresis=hysteresis)
    kind = torch.optim.SGD if is_sgd else torch.optim.Adam
    optimizer = sparse.attach(kind(model.parameters(), lr))
    for step in range(10):
        before = [weight.forward_mask() for weight in sparse.weights.values()]
        try:
            train(model, sparse, optimizer, range(step, step + 1))
        except FloatingPointError:
            return  # it has diverged, and was told
        for weight, mask in zip(sparse.weights.values(), before, strict=True):
            assert int(weight.active.sum()) == weight.counts.forward
            if (step + 1) % clocks[0] == 0:
                counts_for = torch.where(mask, weight.theta() * hysteresis, weight.theta()).flatten()
                a = weight.indices[weight.active].long()
                assert torch.equal(a, top_k_portable(counts_for, weight.counts.forward))
            if (step + 1) % clocks[1] == 0:
                assert torch.equal(weight.indices.long(), top_k(counts_for, weight.counts.backward))


@pytest.mark.parametrize("reservoir", ["stored", "implicit"])
@pytest.mark.parametrize("engine", ["masked", "native"])
def test_a_run_resumed_within_an_interval_keeps_its_bits(reservoir: str, engine: str) -> None:
    def begin() -> tuple[Any, topkast.Handle, Any]:
        model, sparse = start(reservoir, engine, exchange_every=10, hysteresis=1.5)
        return model, sparse, sparse.attach(torch.optim.Adam(model.parameters(), 0.05))

    whole, resumed = begin(), begin()
    train(*whole, range(7))
    saved = copy.deepcopy((whole[0].state_dict(), whole[2].state_dict()))
    train(*whole, range(7, 25))
    resumed[0].load_state_dict(saved[0])
    resumed[2].load_state_dict(saved[1])
    train(*resumed, range(7, 25))
    for key, tensor in whole[0].state_dict().items():
        assert torch.equal(tensor, resumed[0].state_dict()[key]), key


def test_a_changes_less() -> None:
    changed = []
    for hysteresis in (1.0, 2.0):
        model, sparse = start(exchange_every=100, hysteresis=hysteresis)
        optimizer = sparse.attach(torch.optim.Adam(model.parameters(), 0.05))
        total = 0
        for step in range(20):
            train(model, sparse, optimizer, range(step, step + 1))
            total += sum(stats.changed for stats in sparse.stats().values())
        changed.append(total)
    assert changed[1] < 0.8 * changed[0]


@pytest.mark.parametrize("bad", [0.99, -1.0, float("inf"), float("nan")])
def test_what_cannot_be_is_refused(bad: float) -> None:
    with pytest.raises(ValueError, match="`hysteresis` must be at least 1 and finite, got"):
        topkast.TopKAST(0.9, 0.8, hysteresis=bad)
    with pytest.raises(TypeError, match="`hysteresis` must be a number, got 'x'"):
        topkast.TopKAST(0.9, 0.8, hysteresis="x")  # type: ignore[arg-type]
