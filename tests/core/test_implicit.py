"""The implicit reservoir against the same θ held dense: identical, element by element."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import topkast
from topkast.core.implicit import ImplicitReservoir, compact, listed
from topkast.core.initial import Initial, Normal, Uniform
from topkast.core.reservoir import DenseTheta
from topkast.core.select import absent
from topkast.kernels.passes import mark, marked


def net() -> nn.Module:
    with torch.device("meta"):
        return nn.Sequential(nn.Linear(40, 60), nn.ReLU(), nn.LayerNorm(60), nn.Linear(60, 10))


def batches(count: int) -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(0)
    truth = torch.randn(40, 10, generator=generator)
    inputs = [torch.randn(32, 40, generator=generator) for _ in range(count)]
    return [(x, (x @ truth).relu()) for x in inputs]


def train(model: nn.Module, handle: topkast.Handle, optimizer: Any, x: Tensor, y: Tensor) -> None:
    loss = (model(x) - y).square().mean() + 1e-2 * handle.penalty()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()


def assert_equal(mine: topkast.Handle, theirs: topkast.Handle, optimizers: tuple[Any, Any]) -> None:
    for a, b in zip(mine.weights.values(), theirs.weights.values(), strict=True):
        assert torch.equal(a.indices, b.indices)
        assert torch.equal(a.active, b.active)
        assert torch.equal(a.values, b.values)
        states = [o.state[w.values] for o, w in zip(optimizers, (a, b), strict=True)]
        assert all(torch.equal(states[0][key], states[1][key]) for key in states[0])


@pytest.mark.parametrize("exploration", ["magnitude", "random"])
@pytest.mark.parametrize("refresh_every", [1, 10])
@pytest.mark.parametrize("explore_until", [None, 150])
def test_300_steps_in_lock_step_with_the_materialised_reservoir(
    exploration: Any, refresh_every: int, explore_until: int | None
) -> None:
    method = topkast.TopKAST(
        0.9,
        0.8,
        refresh_every=refresh_every,
        exchange_every=refresh_every,
        exploration=exploration,
        explore_until=explore_until,
    )
    model = net()
    handle = topkast.sparsify(model, method, reservoir="implicit", seed=3, engine="masked")
    twin = copy.deepcopy(model)
    twins = topkast.Handle(twin, method)
    twins.materialise()
    assert {w.reservoir.kind for w in twins.weights.values()} == {"stored"}
    optimizers = tuple(
        h.attach(torch.optim.Adam(m.parameters(), lr=0.03)) for m, h in ((model, handle), (twin, twins))
    )
    for x, y in batches(300):
        train(model, handle, optimizers[0], x, y)
        train(twin, twins, optimizers[1], x, y)
        assert_equal(handle, twins, optimizers)
    for mine, theirs in zip(handle.weights.values(), twins.weights.values(), strict=True):
        assert torch.equal(mine.theta(), theirs.theta())
    used = [(s.reservoir_used, s.reservoir_activated) for s in handle.stats().values()]
    assert used == [(s.reservoir_used, s.reservoir_activated) for s in twins.stats().values()]
    assert all(share[0] > 0.05 for share in used), "nothing came out of the stream: the test tests nothing"


def make(numel: int, key: int, initial: Initial, dtype: torch.dtype) -> tuple[ImplicitReservoir, Tensor]:
    reservoir = ImplicitReservoir(numel, key, initial, dtype)
    nothing = torch.empty(0, dtype=torch.int64)
    return reservoir, reservoir.dense(nothing, torch.empty(0, dtype=dtype))


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_any_sequence_of_choices_equals_the_dense_twin(data: st.DataObject) -> None:
    """Values that jump to anywhere, ties with the stream, sets of any size, entrants from anywhere."""
    numel = data.draw(st.integers(2, 200))
    reservoir, dense = make(numel, data.draw(st.integers(0, 99)), Uniform(1.0), torch.float32)
    size = data.draw(st.integers(1, numel))
    nothing = torch.empty(0, dtype=torch.int64)
    indices = reservoir.theta(nothing, torch.empty(0)).top(size)
    assert torch.equal(indices, DenseTheta(dense).top(size))
    values = reservoir.begin(indices)
    generator = torch.Generator().manual_seed(data.draw(st.integers(0, 99)))
    for _ in range(data.draw(st.integers(1, 5))):
        # Some values are set to magnitudes that the stream has too.
        copied = dense[torch.randint(numel, (size,), generator=generator)]
        kept = torch.rand(size, generator=generator) < 0.5
        values = torch.where(kept, values, copied * data.draw(st.sampled_from([-1.0, 0.5, 0.0])))
        dense[indices] = values
        theta = reservoir.theta(indices, values)
        for k in {0, 1, size, min(numel, 2 * size), numel}:
            assert torch.equal(theta.top(k), DenseTheta(dense).top(k))
        everywhere = torch.arange(numel)
        assert torch.equal(theta.at(everywhere), dense)
        if data.draw(st.booleans()):
            new = theta.top(size)
        else:
            new = torch.randperm(numel, generator=generator)[:size].sort().values
        entering, leaving = absent(new, indices), absent(indices, new)
        reservoir.exchange(indices[leaving], values[leaving], new[entering])
        indices, values = new, dense[new]
        assert torch.equal(reservoir.dense(indices, values), dense)


def test_ties_go_to_the_smaller_position_as_in_a_stored_reservoir() -> None:
    """2²⁶ elements below 1: neighbours in rank share their float32 magnitude."""
    reservoir, dense = make(2**26, 1, Uniform(1.0), torch.float32)
    for k in (1001, 12_345):
        nothing = torch.empty(0, dtype=torch.int64)
        top = DenseTheta(dense).top(k)
        assert torch.equal(reservoir.theta(nothing, torch.empty(0)).top(k), top)
        assert dense[top].abs().unique().numel() < 0.6 * k


def test_memory_follows_b_and_not_the_dense_size() -> None:
    for rows in (1000, 100_000):  # 10⁶ and 10⁸ elements, B the same
        with torch.device("meta"):
            model = nn.Sequential(nn.Linear(1000, rows, bias=False))
        sparsity = 1 - 2000 / (1000 * rows)
        handle = topkast.sparsify(model, topkast.TopKAST(sparsity, sparsity), reservoir="implicit", seed=0)
        weight = handle.weights["0"]
        assert weight.counts.backward == 2000
        assert sum(b.nbytes for b in weight.reservoir.buffers()) < 1000


def trained() -> tuple[nn.Module, topkast.Handle]:
    model = net()
    method = topkast.TopKAST(0.9, 0.8, refresh_every=1, exchange_every=1)
    handle = topkast.sparsify(model, method, reservoir="implicit", seed=3)
    optimizer = handle.attach(torch.optim.Adam(model.parameters(), lr=0.03))
    for x, y in batches(20):
        train(model, handle, optimizer, x, y)
    return model, handle


def test_a_checkpoint_goes_on_bit_for_bit_under_another_seed() -> None:
    model, handle = trained()
    other = net()
    other_handle = topkast.sparsify(other, handle.method, reservoir="implicit", seed=99)
    other.load_state_dict(model.state_dict())
    handle = topkast.Handle(model, handle.method)  # without the optimizer it was trained with
    optimizers = [
        h.attach(torch.optim.SGD(m.parameters(), lr=0.05))
        for m, h in ((model, handle), (other, other_handle))
    ]
    for x, y in batches(20):
        train(model, handle, optimizers[0], x, y)
        train(other, other_handle, optimizers[1], x, y)
    for a, b in zip(handle.weights.values(), other_handle.weights.values(), strict=True):
        assert torch.equal(a.theta(), b.theta())
        assert torch.equal(a.indices, b.indices)
    assert handle.stats()["0"].reservoir_activated == other_handle.stats()["0"].reservoir_activated


def _set(name: str, change: Callable[[Tensor], Tensor]) -> Callable[[dict[str, Tensor]], None]:
    def alter(state: dict[str, Tensor]) -> None:
        key = f"0.weight.reservoir.{name}"
        kept = state[key].clone()
        state[key] = change(listed(kept, 2400) if name in ("returned_positions", "retired") else kept)

    return alter


def _set_bits(name: str, change: Callable[[Tensor], Tensor]) -> Callable[[dict[str, Tensor]], None]:
    def alter(state: dict[str, Tensor]) -> None:
        key = f"0.weight.reservoir.{name}"
        assert state[key].dtype == torch.uint8, "300 bytes are less than half a list"
        state[key] = change(state[key].clone())

    return alter


def _swap_first(values: Tensor) -> Tensor:
    values[[0, 1]] = values[[1, 0]]
    return values


@pytest.mark.parametrize(
    ("alter", "message"),
    [
        (_set("key", lambda t: t + 1), "do not fit the positions"),
        (_set("key", lambda t: -t), "key must not be negative"),
        (_set("cursor", lambda t: t - 1), "do not fit the positions"),
        (_set("cursor", lambda t: t + 10**6), r"cursor must lie in \[0, 2400\]"),
        (_set("cursor", lambda t: t.float()), "cursor must be one int64 number"),
        (_set("early", lambda t: torch.tensor([5])), "early must hold ranks from the cursor"),
        (_set("early", lambda t: torch.tensor([10**6])), r"early must lie in \[0, 2400\)"),
        (_set("initial", lambda t: t * torch.tensor([1.0, float("nan"), 1.0])), "initial scale"),
        (_set("initial", lambda t: t[:2]), "initial must be three float64 numbers"),
        (_set("initial", lambda t: t + torch.tensor([7.0, 0.0, 0.0])), "must begin with 0"),
        (_set("returned_positions", _swap_first), "returned_positions must be strictly increasing"),
        (_set("returned_positions", lambda t: t - 10**6), r"returned_positions must lie in \[0, 2400\)"),
        (_set("returned_positions", lambda t: t[1:]), "one number per returned position"),
        (
            _set("returned_values", lambda t: t * float("inf")),
            "reservoir.returned_values has numbers that are not finite",
        ),
        (_set("returned_values", lambda t: t.double() * 1e300), "not finite in torch.float32"),
        (_set("retired", lambda t: torch.tensor([2400])), r"retired must lie in \[0, 2400\)"),
        (_set_bits("returned_positions", lambda t: t[1:]), "must have 300 bytes, a bit for each of 2400"),
        (_set_bits("returned_positions", lambda t: t | 255), "one number per returned position"),
        (_set_bits("returned_positions", lambda t: t.roll(1)), "must not be in B|do not fit the positions"),
    ],
)
def test_a_hostile_or_altered_state_changes_nothing(
    alter: Callable[[dict[str, Tensor]], None], message: str
) -> None:
    model, _ = trained()
    state = model.state_dict()
    alter(state)
    other = net()
    topkast.sparsify(other, topkast.TopKAST(0.9, 0.8), reservoir="implicit", seed=1)
    before = copy.deepcopy(other.state_dict())
    with pytest.raises(ValueError, match=message) as caught:
        other.load_state_dict(state)
    assert "layer '0'" in str(caught.value)
    for key, value in other.state_dict().items():
        assert torch.equal(value, before[key])


def test_returned_elements_that_are_in_b_are_refused() -> None:
    model, handle = trained()
    state = model.state_dict()
    positions = state["0.weight.reservoir.returned_positions"]
    state["0.weight.reservoir.returned_positions"] = handle.weights["0"].indices[: positions.numel()]
    state["0.weight.reservoir.returned_values"] = torch.zeros(
        state["0.weight.reservoir.returned_positions"].numel()
    )
    other = net()
    topkast.sparsify(other, topkast.TopKAST(0.9, 0.8), reservoir="implicit", seed=1)
    with pytest.raises(ValueError, match="must not be in B"):
        other.load_state_dict(state)


@pytest.mark.parametrize("numel", [1, 8, 9, 1000, 300_001])
@pytest.mark.parametrize("share", [0.0, 0.05, 0.08, 0.5, 1.0])
def test_positions_are_kept_as_bits_where_these_are_half_as_long(numel: int, share: float) -> None:
    generator = torch.Generator().manual_seed(numel)
    positions = torch.nonzero(torch.rand(numel, generator=generator) < share).flatten().int()
    kept = compact(positions, numel)
    bits = -(-numel // 8)
    assert kept.nbytes == (bits if 2 * bits <= positions.nbytes else positions.nbytes)
    assert torch.equal(listed(kept, numel), positions)
    assert torch.equal(marked(mark(positions, numel), torch.int64), positions.long())
    assert torch.equal(marked(mark(positions.long(), numel), torch.int32), positions)


def test_bits_beyond_the_last_element_are_refused() -> None:
    with torch.device("meta"):
        model = nn.Sequential(nn.Linear(11, 5))
    topkast.sparsify(model, topkast.TopKAST(0.5, 0.4), reservoir="implicit", seed=0)
    state = model.state_dict()
    state["0.weight.reservoir.retired"] = torch.tensor([0, 0, 0, 0, 0, 0, 128], dtype=torch.uint8)
    with pytest.raises(ValueError, match="retired has bits beyond its 55 elements"):
        model.load_state_dict(state)


def test_positions_that_are_not_of_the_weight_do_not_reach_bits() -> None:
    for positions in ([-1], [16], [3, 3], [5, 2]):
        with pytest.raises(ValueError, match="indices must"):
            mark(torch.tensor(positions), 16)


def test_a_state_with_lists_goes_on_as_one_with_bits() -> None:
    """Version 0.2.0 had lists only."""
    model, handle = trained()
    state = copy.deepcopy(model.state_dict())
    for name in ("returned_positions", "retired"):
        key = f"0.weight.reservoir.{name}"
        state[key] = listed(state[key], 2400)
    other = net()
    other_handle = topkast.sparsify(other, topkast.TopKAST(0.9, 0.8), reservoir="implicit", seed=1)
    other.load_state_dict(state)
    for each in (handle, other_handle):
        with torch.no_grad():
            each.weights["0"].values[::3] = 0
        each.refresh()
    for key, value in model.state_dict().items():
        assert torch.equal(other.state_dict()[key], value), key


def test_a_stored_state_is_not_an_implicit_one() -> None:
    stored = nn.Sequential(nn.Linear(40, 60), nn.ReLU(), nn.LayerNorm(60), nn.Linear(60, 10))
    topkast.sparsify(stored, topkast.TopKAST(0.9, 0.8))
    implicit = net()
    topkast.sparsify(implicit, topkast.TopKAST(0.9, 0.8), reservoir="implicit")
    with pytest.raises(ValueError, match="with the reservoir the state was saved with"):
        implicit.load_state_dict(stored.state_dict())
    with pytest.raises(ValueError, match="with the reservoir the state was saved with"):
        stored.load_state_dict(implicit.state_dict())


def test_float64_and_other_distributions() -> None:
    for initial, dtype in ((Normal(0.02), torch.float64), (Uniform(2.0), torch.float64)):
        reservoir, dense = make(1000, 1, initial, dtype)
        theta = reservoir.theta(torch.empty(0, dtype=torch.int64), torch.empty(0, dtype=dtype))
        assert torch.equal(theta.top(100), DenseTheta(dense).top(100))
