"""A chosen within B at every step: exact, cheap to undo, and the same whatever happens in between."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import topkast
from topkast.core.select import Within, favoured, top_k, top_k_portable, within_portable
from topkast.kernels import native
from topkast.kernels.engines import ENGINES
from topkast.kernels.plan import ActiveChange, Plan

needs_core = pytest.mark.skipif(native.why_missing() is not None, reason="the compiled core is missing")


def flags(numbers: torch.Tensor, k: int) -> torch.Tensor:
    chosen = torch.zeros(numbers.numel(), dtype=torch.bool)
    chosen[top_k_portable(numbers, k) if 0 < k < numbers.numel() else torch.arange(k)] = True
    return chosen


# ---- choosing --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@given(
    st.lists(st.sampled_from([0.0, -0.0, 1.0, -1.0, 0.5, 1e-40, -2e38, 2.0]), min_size=1, max_size=300),
    st.integers(0, 300),
    st.integers(0, 2**32),
)
def test_the_choice_is_that_of_the_twin(dtype: torch.dtype, numbers: list[float], k: int, seed: int) -> None:
    """Among many ties, with any flags before, after a choice from other numbers, and with A favoured."""
    generator = torch.Generator().manual_seed(seed)
    values, k = torch.tensor(numbers, dtype=dtype), min(k, len(numbers))
    active = torch.rand(len(numbers), generator=generator) < 0.5
    within = Within()
    for scale, favour in ((1.0, 1.0), (0.9, 1.0), (1.3, 1.7), (1.3, 2.0), (1.2, 2.0)):
        found = within.choose(values * scale, active, k, favour)
        expected = within_portable(favoured(values * scale, active, favour), active, k)
        if expected is None:  # twice the largest number is too large
            assert found is None
            continue
        assert found is not None
        assert torch.equal(found[0], expected[0])
        assert found[1] == expected[1]


@pytest.mark.parametrize("favour", [1.0, 1.9])
@pytest.mark.parametrize("n", [10, 63, 64, 65, 4096, 5000, 40_000, 200_001])
def test_the_choice_follows_numbers_that_move(n: int, favour: float) -> None:
    torch.manual_seed(0)
    values, k, within = torch.randn(n), n // 3, Within()
    active = flags(values, k)
    for step in range(12):
        values = values + torch.randn(n) * (0.5 if step == 6 else 0.01)  # once by far more than before
        compared = favoured(values, active, favour)
        found = within.choose(values, active, k, favour)
        assert found is not None
        active[found[0]] = ~active[found[0]]
        assert torch.equal(active, flags(compared, k))
        assert found[1] == float(compared[active].abs().min())


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("place", [0, 77, 9_999])
def test_a_number_that_is_not_finite_is_no_choice(bad: float, place: int) -> None:
    values, active = torch.randn(10_000), torch.zeros(10_000, dtype=torch.bool)
    values[place] = bad
    assert Within().choose(values, active, 100) is None
    assert within_portable(values, active, 100) is None


# ---- the Plan ----------------------------------------------------------------------------------------------


def change_of(plan_indices: torch.Tensor, active: torch.Tensor, slots: torch.Tensor) -> ActiveChange:
    enters = ~active[slots]
    active.index_copy_(0, slots, enters)
    return ActiveChange(slots, plan_indices[slots].long(), enters)


SHAPES: dict[str, tuple[tuple[int, ...], Any]] = {
    "linear": ((70, 300), None),
    "tall": ((1100, 40), None),
    "3x3": ((24, 10, 3, 3), ((1, 1), (1, 1), (1, 1), 1)),
    "3x3, stride 2": ((24, 10, 3, 3), ((2, 2), (1, 1), (1, 1), 1)),
    "groups": ((24, 5, 3, 3), ((1, 1), (0, 0), (1, 1), 4)),
    "1-D": ((30, 12, 5), ((1,), (2,), (1,), 1)),
    "embedding": ((50, 16), None),
}


@needs_core
@pytest.mark.parametrize("density", [0.02, 0.5])
@pytest.mark.parametrize("name", SHAPES)
def test_a_plan_that_follows_has_the_bits_of_a_new_one(name: str, density: float) -> None:
    """Over many changes of A, so that cells run out of room and rows come and go.

    Of densities at which |A| may change without another size of blocks: in training it does not change.
    """
    from topkast.kernels.engine import ConvGeometry
    from topkast.kernels.product import Conv, Linear, Lookup

    shape, walk = SHAPES[name]
    torch.manual_seed(0)
    n = torch.Size(shape).numel()
    indices = torch.randperm(n)[: max(8, int(density * n))].sort().values.to(torch.int32)
    active = torch.rand(indices.numel()) < 0.5
    values, engine = torch.randn(indices.numel()), ENGINES["native"]
    geometry = None if walk is None else ConvGeometry(*walk)
    product = Lookup() if name == "embedding" else Linear() if geometry is None else Conv(geometry)
    if geometry is not None:
        x = torch.randn(2, shape[1] * geometry.groups, *range(7, 7 + geometry.num_dims))
    else:
        x = torch.randint(0, shape[0], (9,)) if name == "embedding" else torch.randn(33, shape[1])

    def results(plan: Plan) -> list[torch.Tensor]:
        y = product.compute(engine, plan, values, x, None)
        grads = product.grads(engine, plan, values, x, y, (True, True, False))
        return [y, *(g for g in grads if g is not None)]

    plan = Plan(shape, indices, active)
    results(plan)
    for step in range(40):
        count = int(torch.randint(1, max(2, indices.numel() // 40), ()))
        slots = torch.randperm(indices.numel())[:count].sort().values
        if step % 2:  # in one direction for a while: cells fill up, and empty
            slots = slots[active[slots] == (step % 20 < 10)]
        if slots.numel() == 0:
            continue
        old = plan
        followed = plan.after(change_of(indices, active, slots))
        assert followed is not None
        plan = followed
        assert plan.derived
        new = Plan(shape, indices, active.clone())
        assert plan.describes(indices, active, explores=True)
        for mine, theirs in zip(results(plan), results(new), strict=True):
            assert torch.equal(mine, theirs)
        with pytest.raises(RuntimeError, match="changed after this Plan was made"):
            results(old)


@needs_core
def test_changes_that_cannot_be_are_refused_by_the_compiled_core() -> None:
    indices, active = torch.tensor([1, 4, 5, 9], dtype=torch.int32), torch.tensor([True, False, True, True])

    def update(slots: list[int], positions: list[int], enters: list[bool], explores: bool = True) -> None:
        compiled = native._plan(Plan((3, 4), indices, active.clone(), explores=explores))
        s, p, e = torch.tensor(slots), torch.tensor(positions), torch.tensor(enters)
        compiled.update(s.data_ptr(), p.data_ptr(), e.data_ptr(), len(slots), 1)

    update([1, 3], [4, 9], [True, False])
    for slots, positions, enters, message in (
        ([1], [12], [True], "outside of the weight"),
        ([1], [-1], [True], "outside of the weight"),
        ([1], [9], [True], "is not in B"),
        ([4], [9], [True], "is not in B"),
        ([-1], [4], [True], "is not in B"),
        ([0], [1], [True], "enters A that is in it"),
        ([1], [4], [False], "leaves A that is not"),
    ):
        with pytest.raises(ValueError, match=message):
            update(slots, positions, enters)
    with pytest.raises(ValueError, match="made anew when A changes"):
        update([1], [4], [True], explores=False)


# ---- training ------------------------------------------------------------------------------------------------


def net() -> nn.Sequential:
    return nn.Sequential(nn.Linear(20, 32), nn.Tanh(), nn.Linear(32, 6))


def setup(reservoir: Any = "stored", engine: str = "native", **options: Any) -> tuple[Any, topkast.Handle]:
    with torch.device("meta" if reservoir == "implicit" else "cpu"):
        model = net()
    method = topkast.TopKAST(0.8, 0.6, **options)
    return model, topkast.sparsify(model, method, seed=1, engine=engine, reservoir=reservoir)


def train(model: Any, sparse: topkast.Handle, optimizer: Any, first: int, last: int) -> None:
    for step in range(first, last):
        x = torch.randn(16, 20, generator=torch.Generator().manual_seed(step))
        (model(x).square().mean() + 1e-3 * sparse.penalty()).backward()
        optimizer.step()
        optimizer.zero_grad()


@pytest.mark.parametrize("reservoir", ["stored", "implicit"])
@settings(max_examples=25)  # each trains a network
@given(st.floats(1e-4, 3.0), st.sampled_from([(1, 1), (1, 5), (1, 100)]), st.booleans())
def test_a_is_the_top_k_of_theta_after_every_step(
    reservoir: str, lr: float, clocks: tuple[int, int], is_sgd: bool
) -> None:
    """At any learning rate: where one of C could be larger, an exchange comes early."""
    torch.manual_seed(0)
    model, sparse = setup(reservoir, "masked", refresh_every=clocks[0], exchange_every=clocks[1])
    kind = torch.optim.SGD if is_sgd else torch.optim.Adam
    optimizer = sparse.attach(kind(model.parameters(), lr))
    for step in range(12):
        try:
            train(model, sparse, optimizer, step, step + 1)
        except FloatingPointError:
            return  # it has diverged, and was told
        for weight in sparse.weights.values():
            a = weight.indices[weight.active].long()
            assert torch.equal(a, top_k(weight.theta().flatten(), weight.counts.forward))
            assert a.numel() == weight.counts.forward


def test_early_exchanges_are_counted_and_keep_a_exact() -> None:
    torch.manual_seed(0)
    model = net()
    sparse = topkast.sparsify(model, topkast.TopKAST(0.8, 0.79), seed=1)
    optimizer = sparse.attach(torch.optim.SGD(model.parameters(), 0.5))
    train(model, sparse, optimizer, 0, 30)
    for name, stats in sparse.stats().items():
        weight = sparse.weights[name]
        assert stats.early_exchanges > 0
        a = weight.indices[weight.active].long()
        assert torch.equal(a, top_k(weight.theta().flatten(), weight.counts.forward))


def test_random_exploration_chooses_a_within_b_and_never_early() -> None:
    """C may hold larger ones between exchanges: A is the Top-K of B alone."""
    torch.manual_seed(0)
    model, sparse = setup(exploration="random", exchange_every=20)
    optimizer = sparse.attach(torch.optim.Adam(model.parameters(), 0.05))
    b = [weight.indices.clone() for weight in sparse.weights.values()]
    train(model, sparse, optimizer, 0, 19)
    for weight, before in zip(sparse.weights.values(), b, strict=True):
        assert torch.equal(weight.indices, before)
        assert torch.equal(weight.active, flags(weight.values.detach(), weight.counts.forward))
        assert int(weight.early) == 0
    train(model, sparse, optimizer, 19, 20)
    assert not all(torch.equal(w.indices, i) for w, i in zip(sparse.weights.values(), b, strict=True))


@pytest.mark.parametrize("reservoir", ["stored", "implicit"])
@pytest.mark.parametrize("stop", [3, 7, 10])
def test_a_run_resumed_within_an_interval_keeps_its_bits(reservoir: str, stop: int) -> None:
    def start() -> tuple[Any, topkast.Handle, Any]:
        torch.manual_seed(0)
        model, sparse = setup(reservoir, exchange_every=10)
        return model, sparse, sparse.attach(torch.optim.Adam(model.parameters(), 0.05))

    model, sparse, optimizer = start()
    train(model, sparse, optimizer, 0, stop)
    saved = copy.deepcopy((model.state_dict(), optimizer.state_dict()))
    train(model, sparse, optimizer, stop, 25)
    resumed, its_sparse, its_optimizer = start()
    resumed.load_state_dict(saved[0])
    its_optimizer.load_state_dict(saved[1])
    train(resumed, its_sparse, its_optimizer, stop, 25)
    mine, theirs = model.state_dict(), resumed.state_dict()
    assert mine.keys() == theirs.keys()
    assert all(torch.equal(mine[key], theirs[key]) for key in mine)
    assert sparse.stats() == its_sparse.stats()


@pytest.mark.parametrize("reservoir", ["stored", "implicit"])
def test_the_history_counts_what_was_in_a_at_exchanges(reservoir: str) -> None:
    torch.manual_seed(0)
    model, sparse = setup(reservoir, exchange_every=5)
    optimizer = sparse.attach(torch.optim.Adam(model.parameters(), 0.05))
    first = {name: set(w.indices.tolist()) for name, w in sparse.weights.items()}
    been: dict[str, set[int]] = {name: set() for name in first}
    early = dict.fromkeys(first, 0)
    for step in range(1, 31):
        train(model, sparse, optimizer, step, step + 1)
        for name, weight in sparse.weights.items():
            if step % 5 == 0 or int(weight.early) > early[name]:
                early[name] = int(weight.early)
                been[name] |= set(weight.indices[weight.active].tolist()) - first[name]
            share = len(been[name]) / (weight.numel() - len(first[name]))
            assert sparse.stats()[name].reservoir_activated == pytest.approx(share)
    assert any(been.values())
    train(model, sparse, optimizer, 31, 33)
    before = sparse.stats()
    sparse.materialise()
    assert [s.reservoir_activated for s in sparse.stats().values()] == [
        s.reservoir_activated for s in before.values()
    ]


def test_followers_get_the_a_of_every_step() -> None:
    torch.manual_seed(0)
    model, sparse = setup(exchange_every=10)
    average = torch.optim.swa_utils.AveragedModel(model, avg_fn=lambda a, b, _: 0.9 * a + 0.1 * b)
    sparse.follow(average)
    optimizer = sparse.attach(torch.optim.Adam(model.parameters(), 0.05))
    for step in range(25):
        train(model, sparse, optimizer, step, step + 1)
        average.update_parameters(model)
        for mine, theirs in zip(model.modules(), average.module.modules(), strict=True):
            if isinstance(mine, topkast.nn.Linear):
                assert torch.equal(mine.weight.active, theirs.weight.active)
                assert torch.equal(mine.weight.indices, theirs.weight.indices)


def test_a_value_that_is_not_finite_is_named_and_changes_nothing() -> None:
    model, sparse = setup()
    optimizer = sparse.attach(torch.optim.SGD(model.parameters(), 0.1))
    train(model, sparse, optimizer, 0, 2)
    with torch.no_grad():
        sparse.weights["2"].values[3] = float("nan")
    active = sparse.weights["0"].active.clone()
    with pytest.raises(FloatingPointError, match=r"layer '2': 1 of \d+ values are not finite"):
        optimizer.step()
    assert torch.equal(sparse.weights["0"].active, active)


@pytest.mark.parametrize(
    ("options", "clocks"),
    [
        ({}, (1, 100)),
        ({"refresh_every": 7}, (7, 105)),
        ({"refresh_every": 20}, (20, 100)),
        ({"refresh_every": 250}, (250, 250)),
        ({"exchange_every": 3}, (1, 3)),
        ({"scope": "global"}, (100, 100)),
        ({"scope": "global", "refresh_every": 5}, (5, 5)),
        ({"scope": "global", "exchange_every": 5}, (5, 5)),
    ],
    ids=str,
)
def test_clocks_that_are_not_given(options: dict[str, Any], clocks: tuple[int, int]) -> None:
    method = topkast.TopKAST(0.9, 0.8, **options)
    assert (method.refresh_every, method.exchange_every) == clocks


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"refresh_every": 3, "exchange_every": 10}, r"must be a multiple of `refresh_every` \(3\), got 10"),
        ({"refresh_every": 10, "exchange_every": 5}, r"must be a multiple of `refresh_every` \(10\), got 5"),
        ({"refresh_every": 0, "exchange_every": 0}, r"`refresh_every` must be at least 1, got 0"),
        ({"exchange_every": 0}, r"`exchange_every` must be at least 1, got 0"),
        (
            {"scope": "global", "refresh_every": 1, "exchange_every": 5},
            r"chooses A at exchanges only.*equal to `exchange_every` \(5\), got 1",
        ),
    ],
    ids=str,
)
def test_clocks_that_cannot_be(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        topkast.TopKAST(0.9, 0.8, **options)


def test_settings_of_version_0_1_have_one_clock() -> None:
    old = {"forward_sparsity": 0.9, "backward_sparsity": 0.8, "refresh_every": 7}
    method = topkast.TopKAST.from_settings(old)
    assert (method.refresh_every, method.exchange_every) == (7, 7)
