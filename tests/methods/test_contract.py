"""What every method promises, on a model with linear, convolution and embedding layers."""

from __future__ import annotations

import io
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import topkast
from methods.conftest import METHODS, STEPS, Training
from topkast.core.weight import SparseWeight
from topkast.methods.gated import Gated

every_method = pytest.mark.parametrize("make", METHODS.values(), ids=METHODS)
pytestmark = pytest.mark.usefixtures("one_thread")
Make = Callable[[], topkast.Method]


def sparsity_of(schedule: Any, step: int, otherwise: float) -> float:
    """s(t), written out once more."""
    if schedule is None:
        return otherwise
    if isinstance(schedule, topkast.Stages):
        return dict(schedule.levels)[max(begin for begin, _ in schedule.levels if begin <= step)]
    share = min(1.0, max(0.0, (step - schedule.from_step) / (schedule.to_step - schedule.from_step)))
    left = {"cubic": (1 - share) ** 3, "cosine": (1 + math.cos(math.pi * share)) / 2}[schedule.form]
    return schedule.end - (schedule.end - schedule.start) * left


def scheduled_sparsities(method: topkast.TopKAST, step: int) -> tuple[float, float]:
    """Those of the last exchange: of the clock, of a stage, or of the end of annealing."""
    ends: set[int] = set()
    for schedule in (method.forward_schedule, method.backward_schedule):
        if isinstance(schedule, topkast.Stages):
            ends |= dict(schedule.levels).keys()
        elif isinstance(schedule, topkast.Anneal):
            ends.add(schedule.to_step)
    last = max(s for s in range(step + 1) if s % method.exchange_every == 0 or s in ends)
    return (
        sparsity_of(method.forward_schedule, last, method.forward_sparsity),
        sparsity_of(method.backward_schedule, last, method.backward_sparsity),
    )


def check_counts(method: topkast.Method, step: int, weights: dict[str, SparseWeight]) -> None:
    """|A| and |B| after `step` steps, from the formulas of the methods' own papers."""
    for weight in weights.values():
        assert weight.counts.forward == int(weight.active.sum())
        assert weight.counts.backward == weight.indices.numel() == weight.values.numel()
        assert weight.indices.unique().numel() == weight.indices.numel()
    sizes = {name: (w.counts.forward, w.counts.backward) for name, w in weights.items()}
    if isinstance(method, topkast.STR):
        for weight in weights.values():
            above = weight.theta().abs() > torch.sigmoid(weight.companion.s)
            assert torch.equal(weight.forward_mask(), above)
            assert weight.counts.backward == weight.numel()
    elif isinstance(method, Gated):
        is_cut = method.cut_at is not None and step >= method.cut_at
        for name, weight in weights.items():
            assert sizes[name][0] == sizes[name][1] <= weight.numel()
            assert is_cut == (weight.companion.is_settled) == (sizes[name][0] < weight.numel())
            if not is_cut:
                assert next(weight.companion.learned()).shape == weight.values.shape
    elif isinstance(method, topkast.Pruning):
        last = max((s for s in (2, 4, 6, 8, 10, 11) if s <= step), default=None)
        for name, weight in weights.items():
            final = 1 - round(0.2 * weight.numel()) / weight.numel()
            sparsity = 0.0 if last is None else final * (1 - (1 - (last - 2) / 9) ** 3)
            forward = round((1 - sparsity) * weight.numel())
            is_ramp = method.updates == "all" and step < 11
            assert sizes[name] == (forward, weight.numel() if is_ramp else forward)
    elif method.resizes and not method.plans_sizes:
        forward, backward = method.forward_sparsity, method.backward_sparsity
        if isinstance(method, topkast.TopKAST):
            forward, backward = scheduled_sparsities(method, step)
        total = sum(round((1 - forward) * w.numel()) for w in weights.values())
        assert sum(a for a, _ in sizes.values()) == total
        total_b = sum(round((1 - backward) * w.numel()) for w in weights.values())
        assert sum(b for _, b in sizes.values()) == total_b
        assert all(a >= 1 for a, _ in sizes.values())
    else:
        forward, backward = method.forward_sparsity, method.backward_sparsity
        if isinstance(method, topkast.TopKAST):
            forward, backward = scheduled_sparsities(method, step)
        for name, weight in weights.items():
            n = weight.numel()
            assert sizes[name] == (round((1 - forward) * n), round((1 - backward) * n))
            assert method.sizes(step, weight.target) == weight.counts


@every_method
def test_counts_are_exact_at_every_step(make: Make) -> None:
    method = make()
    training = Training.start(method)
    parameters = {name: w.values for name, w in training.sparse.weights.items()}
    check_counts(method, 0, training.sparse.weights)
    loss = None
    for step in range(STEPS):
        loss = training.step(step)  # the graph of the step before is alive while the next one is built
        check_counts(method, step + 1, training.sparse.weights)
        for name, weight in training.sparse.weights.items():
            assert weight.values is parameters[name]
            state = training.optimizer.state[weight.values]["momentum_buffer"]
            assert state.shape == weight.values.shape
    assert loss is not None


@every_method
def test_nothing_outside_b_is_updated(make: Make) -> None:
    method = make()
    training = Training.start(method)
    for step in range(STEPS):
        before = {name: (w.theta(), w.backward_mask()) for name, w in training.sparse.weights.items()}
        training.step(step)
        for name, weight in training.sparse.weights.items():
            theta, b = before[name]
            stayed_outside = ~b & ~weight.backward_mask()
            assert torch.equal(weight.theta()[stayed_outside], theta[stayed_outside])
            if method.fetches:  # entrants have the value they always had
                entered = ~b & weight.backward_mask()
                assert torch.equal(weight.theta()[entered], theta[entered])
            elif not isinstance(method, topkast.Static | topkast.Dense):
                assert not weight.theta()[~weight.backward_mask()].any()


def _saved_and_loaded(state: Any) -> Any:
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


def _assert_same(a: Training, b: Training) -> None:
    mine, theirs = a.model.state_dict(), b.model.state_dict()
    assert mine.keys() == theirs.keys()
    for key in mine:
        assert torch.equal(mine[key], theirs[key]), key
    for p, q in zip(a.model.parameters(), b.model.parameters(), strict=True):
        for name, entry in a.optimizer.state[p].items():
            other = b.optimizer.state[q][name]
            assert torch.equal(entry, other) if isinstance(entry, Tensor) else entry == other


@every_method
@pytest.mark.parametrize("stop", [1, 4, 6, 9])
def test_a_resumed_run_goes_on_bit_for_bit(make: Make, stop: int) -> None:
    whole = Training.start(make()).run(0, STEPS)
    state = _saved_and_loaded(Training.start(make()).run(0, stop).state())
    resumed = Training.start(make(), seed=99)  # whatever it starts from is replaced
    resumed.model.load_state_dict(state["model"])
    resumed.optimizer.load_state_dict(state["optimizer"])
    torch.set_rng_state(state["rng"])
    _assert_same(resumed.run(stop, STEPS), whole)


@every_method
def test_the_same_seed_gives_the_same_run(make: Make) -> None:
    first, second = (Training.start(make(), seed=3).run(0, STEPS) for _ in range(2))
    _assert_same(first, second)
    other = Training.start(make(), seed=4).run(0, STEPS)
    assert any(
        not torch.equal(first.sparse.weights[name].theta(), other.sparse.weights[name].theta())
        for name in first.sparse.weights
    )


@every_method
def test_every_engine_gives_the_same_run(make: Make, engine: str) -> None:
    expected = Training.start(make()).run(0, STEPS)
    got = Training.start(make(), engine=engine).run(0, STEPS)
    for name, weight in expected.sparse.weights.items():
        other = got.sparse.weights[name]
        assert torch.equal(other.indices, weight.indices)
        assert torch.equal(other.active, weight.active)
        torch.testing.assert_close(other.values, weight.values, rtol=1e-9, atol=1e-11)


@every_method
def test_a_copy_that_follows_has_the_same_sets(make: Make) -> None:
    training = Training.start(make())
    averaged = torch.optim.swa_utils.AveragedModel(training.model)
    training.sparse.follow(averaged)
    for step in range(STEPS):
        training.step(step)
        averaged.update_parameters(training.model)
    for name, weight in training.sparse.weights.items():
        twin = averaged.module.get_submodule(name).weight
        assert torch.equal(twin.indices, weight.indices)
        assert torch.equal(twin.active, weight.active)
        assert twin.values.shape == weight.values.shape


@every_method
def test_densify_gives_what_the_products_use(make: Make) -> None:
    training = Training.start(make()).run(0, STEPS)
    training.model.eval()
    ids = torch.randint(24, (4, 6))
    expected = training.model(ids)
    torch.testing.assert_close(topkast.densify(training.model)(ids), expected, rtol=1e-12, atol=1e-12)
