"""Invariants of sets, refresh and penalty, over shapes, densities and ties."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import topkast
import twin

numbers = st.sampled_from([-2.0, -1.0, -0.5, 0.0, 0.5, 1.0, 2.0])


def linear(rows: int, columns: int, entries: list[float] | None = None) -> nn.Sequential:
    layer = nn.Linear(columns, rows).double()
    if entries is not None:
        with torch.no_grad():
            layer.weight.copy_(torch.tensor(entries).view(rows, columns))
    return nn.Sequential(layer)


@st.composite
def cases(draw: st.DrawFn) -> tuple[int, int, list[float], float, float]:
    rows, columns = draw(st.integers(1, 8)), draw(st.integers(1, 8))
    entries = draw(st.lists(numbers, min_size=rows * columns, max_size=rows * columns))
    forward = draw(st.floats(0.0, 0.99))
    return rows, columns, entries, forward, draw(st.floats(0.0, forward))


@given(cases(), st.sampled_from(["magnitude", "random"]), st.data())
def test_sets_are_exact_nested_and_the_top_of_theta(
    case: tuple[int, int, list[float], float, float], exploration: str, data: st.DataObject
) -> None:
    rows, columns, entries, forward, backward = case
    method = topkast.TopKAST(forward, backward, exploration=exploration)  # type: ignore[arg-type]
    sparse = topkast.sparsify(linear(rows, columns, entries), method, seed=0)
    (layer,) = sparse.layers.values()
    n = rows * columns
    num_a = max(1, round((1 - forward) * n))
    num_b = max(num_a, round((1 - backward) * n))
    theta_0 = torch.tensor(entries, dtype=torch.float64).view(rows, columns)
    assert torch.equal(layer.theta(), theta_0)
    for _ in range(3):
        a, b, theta = layer.forward_mask(), layer.backward_mask(), layer.theta()
        assert (int(a.sum()), int(b.sum())) == (num_a, num_b)
        assert not (a & ~b).any()
        assert torch.equal(a, twin.top_k(theta, num_a))
        if exploration == "magnitude":
            assert torch.equal(b, twin.top_k(theta, num_b))
        assert torch.equal(layer.alpha(), theta * a)
        # Change θ on B by anything, ties included: C must not move, θ must survive the refresh.
        new = data.draw(st.lists(numbers, min_size=num_b, max_size=num_b))
        with torch.no_grad():
            layer.weight.values.copy_(torch.tensor(new, dtype=torch.float64))
        changed = layer.theta()
        assert torch.equal(changed[~b], theta[~b])
        sparse.refresh()
        assert torch.equal(layer.theta(), changed)


@given(cases(), st.sampled_from([1, 2]))
def test_penalty_and_its_gradient_equal_the_formula(
    case: tuple[int, int, list[float], float, float], power: int
) -> None:
    rows, columns, entries, forward, backward = case
    sparse = topkast.sparsify(linear(rows, columns, entries), topkast.TopKAST(forward, backward))
    (layer,) = sparse.layers.values()
    theta, a, b = layer.theta(), layer.forward_mask(), layer.backward_mask()
    density = int(a.sum()) / a.numel()
    only_b = b & ~a
    if power == 2:
        expected = theta[a].square().sum() / 2 + theta[only_b].square().sum() / (2 * density)
        slope = theta * a + theta * only_b / density
    else:
        expected = theta[a].abs().sum() + theta[only_b].abs().sum() / density
        slope = theta.sign() * a + theta.sign() * only_b / density
    value = sparse.penalty(power=power)
    torch.testing.assert_close(value, expected, rtol=1e-12, atol=1e-12)
    value.backward()
    torch.testing.assert_close(layer.weight.values.grad, slope[b], rtol=1e-12, atol=1e-12)


def test_penalty_takes_one_of_two_readings() -> None:
    sparse = topkast.sparsify(linear(3, 3), topkast.TopKAST(0.5, 0.5))
    with pytest.raises(ValueError, match="`power` must be 1 or 2, got 3"):
        sparse.penalty(power=3)


def train(seed: int, exploration: str = "random", steps: int = 30, optimizer: str = "SGD") -> topkast.Handle:
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(10, 20), nn.ReLU(), nn.Linear(20, 5))
    sparse = topkast.sparsify(
        model, topkast.TopKAST(0.8, 0.6, refresh_every=3, exchange_every=3, exploration=exploration)
    )  # type: ignore[arg-type]
    options = {"momentum": 0.9, "weight_decay": 0.1} if optimizer == "SGD" else {}
    opt = sparse.attach(getattr(torch.optim, optimizer)(model.parameters(), lr=0.1, **options))
    for _ in range(steps):
        before = {name: (layer.theta(), layer.backward_mask()) for name, layer in sparse.layers.items()}
        loss = model(torch.randn(8, 10)).square().mean() + 1e-2 * sparse.penalty()
        loss.backward()
        opt.step()
        opt.zero_grad()
        for name, layer in sparse.layers.items():
            theta, b = before[name]
            # Momentum, decay and the penalty act on B; C is the same to the last bit.
            assert torch.equal(layer.theta()[~b], theta[~b])
            assert not torch.equal(layer.theta()[b], theta[b])
    return sparse


@pytest.mark.parametrize("exploration", ["magnitude", "random"])
@pytest.mark.parametrize("optimizer", ["SGD", "AdamW", "Adagrad"])
def test_nothing_outside_b_ever_moves(exploration: str, optimizer: str) -> None:
    train(0, exploration, optimizer=optimizer)


def test_same_seed_same_run_and_another_seed_another() -> None:
    first, again, other = train(3), train(3), train(4)
    for name in first.layers:
        assert torch.equal(first.layers[name].theta(), again.layers[name].theta())
        assert torch.equal(first.layers[name].backward_mask(), again.layers[name].backward_mask())
        assert not torch.equal(first.layers[name].backward_mask(), other.layers[name].backward_mask())


def test_an_explicit_seed_decides_random_exploration() -> None:
    masks = []
    for seed in (1, 1, 2):
        torch.manual_seed(0)
        method = topkast.TopKAST(0.8, 0.6, exploration="random")
        sparse = topkast.sparsify(linear(10, 10), method, seed=seed)
        masks.append(sparse.layers["0"].backward_mask())
    assert torch.equal(masks[0], masks[1])
    assert not torch.equal(masks[0], masks[2])


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_a_refresh_with_non_finite_theta_names_the_layer_and_changes_nothing(bad: float) -> None:
    model = nn.Sequential(nn.Linear(6, 6), nn.Linear(6, 6))
    sparse = topkast.sparsify(model, topkast.TopKAST(0.7, 0.4))
    with torch.no_grad():
        sparse.layers["0"].weight.values.mul_(torch.linspace(0, 3, 22))  # sets would change
        sparse.layers["1"].weight.values[3] = bad
    before = {k: v.clone() for k, v in model.state_dict().items()}
    position = int(sparse.layers["1"].weight.indices[3])
    with pytest.raises(
        FloatingPointError,
        match=rf"layer '1': 1 of 22 values are not finite.*at position {position}\); the sets",
    ):
        sparse.refresh()
    for key, value in model.state_dict().items():
        torch.testing.assert_close(value, before[key], rtol=0, atol=0, equal_nan=True)


def test_changed_is_the_papers_measure() -> None:
    sparse = topkast.sparsify(linear(1, 10, [10, 9, 8, 7, 6, 5, 4, 3, 2, 1]), topkast.TopKAST(0.8, 0.5))
    layer = sparse.layers["0"]
    assert sparse.stats()["0"].changed == 0.0
    before = layer.forward_mask().double()
    with torch.no_grad():
        layer.weight.values.copy_(torch.tensor([10.0, 0.1, 11.0, 7.0, 6.0]))  # 2 for 1 in A; 1 leaves B
    sparse.refresh()
    after = layer.forward_mask().double()
    stats = sparse.stats()["0"]
    assert stats.changed == float((after - before).square().sum()) / 10 == 0.2
    assert stats.reservoir_used == 0.2  # one of five: position 5 took the place of 1
    assert stats.reservoir_activated == 0.0


def test_the_gradient_moves_with_its_weight() -> None:
    """Accumulated gradients stay with their elements when a refresh comes in between."""
    sparse = topkast.sparsify(linear(1, 6, [6, 5, 4, 3, 2, 1]), topkast.TopKAST(0.8, 0.5))
    weight = sparse.layers["0"].weight
    weight.values.grad = torch.tensor([10.0, 20.0, 30.0], dtype=torch.float64)
    with torch.no_grad():
        weight.values.copy_(torch.tensor([0.5, 5.0, 4.0]))
    sparse.refresh()
    assert weight.indices.tolist() == [1, 2, 3]
    assert weight.values.grad.tolist() == [20.0, 30.0, 0.0]
