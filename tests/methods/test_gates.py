"""L0 and variational dropout against plain twins: noise, gates, complexity, the cut, and what is kept."""

from __future__ import annotations

import copy
import io
import math
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import topkast
from methods.conftest import Training, batch
from topkast.convert.compressed import compress
from topkast.cost.parameters import parameters

pytestmark = pytest.mark.usefixtures("one_thread")
Make = Callable[..., topkast.Method]

# By the name of what each keeps beside a weight: settings with which some elements are cut at once.
MAKES: dict[str, Make] = {
    "log_alpha": lambda **options: topkast.L0(droprate_init=0.6, **options),
    "log_sigma2": lambda **options: topkast.VariationalDropout(
        log_sigma2_init=-3.0, threshold=1.0, **options
    ),
}
both = pytest.mark.parametrize("name", MAKES)


def small(name: str, **options: Any) -> tuple[nn.Sequential, topkast.Handle]:
    """One linear layer in double precision, whose gates differ from each other."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(12, 10, bias=False)).double()
    nn.init.normal_(model[0].weight)
    sparse = topkast.sparsify(model, MAKES[name](**options))
    with torch.no_grad():
        getattr(sparse.weights["0"].companion, name).add_(2 * torch.randn(120))
    return model, sparse


def twin(name: str, theta: Tensor, gate: Tensor, noise: Tensor | None) -> Tensor:
    """What the products use, from the formulas of the papers; `noise` is None in evaluation."""
    if name == "log_alpha":
        drawn = 0 if noise is None else torch.log(noise) - torch.log(1 - noise)
        s = 1 / (1 + torch.exp(-(drawn + gate) / (1 if noise is None else 2 / 3)))
        return theta * torch.clip(s * 1.2 - 0.1, 0, 1)
    if noise is not None:
        return theta + torch.sqrt(torch.exp(gate)) * noise
    return torch.where(gate - torch.log(theta**2 + 1e-8) <= 1.0, theta, torch.zeros_like(theta))


def complexity(name: str, theta: Tensor, gate: Tensor) -> Tensor:
    if name == "log_alpha":
        return (1 / (1 + torch.exp(-(gate - 2 / 3 * math.log(0.1 / 1.1))))).sum()
    log_alpha = gate - torch.log(theta**2 + 1e-8)
    sigmoid = 1 / (1 + torch.exp(-(1.87320 + 1.48695 * log_alpha)))
    negative = 0.63576 * sigmoid - 0.5 * torch.log(1 + 1 / torch.exp(log_alpha)) - 0.63576
    return -negative.sum()


def leaves(sparse: topkast.Handle, name: str) -> tuple[Tensor, Tensor]:
    """θ and what is kept beside it, for the twin."""
    weight = sparse.weights["0"]
    gate = getattr(weight.companion, name)
    return tuple(t.detach().clone().view(10, 12).requires_grad_() for t in (weight.values, gate))  # pyright: ignore[reportReturnType]


@both
@pytest.mark.parametrize("is_training", [True, False])
def test_products_and_gradients_are_those_of_the_plain_twin(name: str, is_training: bool) -> None:
    model, sparse = small(name)
    theta, gate = leaves(sparse, name)
    x = torch.randn(7, 12, dtype=torch.float64)
    model.train(is_training)
    torch.manual_seed(5)
    y = model(x)
    y.square().sum().backward()
    torch.manual_seed(5)
    draw = torch.rand if name == "log_alpha" else torch.randn
    noise = draw(120, dtype=torch.float64).view(10, 12) if is_training else None
    expected = F.linear(x, twin(name, theta, gate, noise))
    expected.square().sum().backward()
    torch.testing.assert_close(y, expected)
    weight = sparse.weights["0"]
    torch.testing.assert_close(weight.values.grad, theta.grad.flatten())
    learned = getattr(weight.companion, name).grad
    if name == "log_sigma2" and not is_training:
        assert learned is None  # a threshold has no derivative
    else:
        assert learned.any()
        torch.testing.assert_close(learned, gate.grad.flatten())


@both
def test_the_penalty_is_the_complexity_and_so_is_its_gradient(name: str) -> None:
    _, sparse = small(name)
    theta, gate = leaves(sparse, name)
    expected = complexity(name, theta, gate)
    torch.testing.assert_close(sparse.penalty(), expected, rtol=1e-12, atol=0)
    (0.3 * expected).backward()
    weight = sparse.weights["0"]
    pairs = [(weight.values, theta), (getattr(weight.companion, name), gate)]
    for add in (lambda: (0.3 * sparse.penalty()).backward(), lambda: sparse.add_penalty_gradient(0.3)):
        for parameter, _ in pairs:
            parameter.grad = None
        add()
        for parameter, leaf in pairs:
            if leaf.grad is None:  # L0's complexity does not depend on θ
                assert name == "log_alpha"
                assert parameter.grad is None
            else:
                torch.testing.assert_close(parameter.grad, leaf.grad.flatten(), rtol=1e-9, atol=1e-12)


def test_the_complexity_of_l0_is_the_number_of_open_gates_on_average() -> None:
    _, sparse = small("log_alpha")
    weight = sparse.weights["0"]
    torch.manual_seed(1)
    counts = [float((weight.used() != 0).sum()) for _ in range(4000)]
    # The mean of 4000 sums of 120 coins is within 5 of its own standard deviations, at most √(120/4)/√4000.
    assert abs(sum(counts) / 4000 - float(sparse.penalty().detach())) < 5 * (120 / 4 / 4000) ** 0.5


def test_the_complexity_of_a_weight_at_zero_is_finite_and_so_is_its_gradient() -> None:
    _, sparse = small("log_sigma2")
    with torch.no_grad():
        sparse.weights["0"].values.zero_()
    penalty = sparse.penalty()
    penalty.backward()
    assert torch.isfinite(penalty)
    assert all(torch.isfinite(p.grad).all() for p in sparse.model.parameters())


@both
def test_the_penalty_rises_along_a_line_in_the_warm_up(name: str) -> None:
    model, sparse = small(name, penalty_warmup=4)
    optimizer = sparse.attach(torch.optim.SGD(model.parameters(), lr=0.0))
    factors = []
    for _ in range(6):
        loss = sparse.penalty()
        factors.append(float(loss.detach() / complexity(name, *leaves(sparse, name)).detach()))
        (loss + model(torch.randn(2, 12, dtype=torch.float64)).sum()).backward()
        optimizer.step()
    assert factors == pytest.approx([0, 0.25, 0.5, 0.75, 1, 1], abs=1e-5)


@both
def test_training_draws_anew_and_evaluation_does_not(name: str) -> None:
    model, _ = small(name)
    x = torch.randn(3, 12, dtype=torch.float64)
    assert not torch.equal(model(x), model(x))
    model.eval()
    state = torch.get_rng_state()
    assert torch.equal(model(x), model(x))
    assert torch.equal(torch.get_rng_state(), state)
    model.train()
    assert not torch.equal(model(x), model(x))
    # A model that is made sparse in evaluation mode stays in it.
    other = nn.Sequential(nn.Linear(12, 10)).eval()
    made = topkast.sparsify(other, MAKES[name]())
    assert not made.weights["0"].companion.training


@both
def test_what_is_exported_and_measured_is_what_evaluation_uses(name: str) -> None:
    model, sparse = small(name)
    expected = twin(name, *(leaf.detach() for leaf in leaves(sparse, name)), None)
    left = int((expected != 0).sum())
    assert 10 < left < 110
    dense = topkast.densify(model)[0].weight
    torch.testing.assert_close(dense.detach(), expected)
    assert torch.equal(dense == 0, expected == 0)
    stats = sparse.stats()
    assert (stats["0"].evaluated, stats["0"].evaluated_density) == (left, left / 120)
    assert stats["0"].forward == 120
    line = f"not zero in evaluation: {left} of 120 ({100 * left / 120:.2f} %)"
    assert line in str(stats)
    assert line in str(sparse)
    assert parameters(model, sparse.weights).used == left
    assert parameters(model, sparse.weights).dense == 120
    file = compress(model).tensors
    torch.testing.assert_close(file["0.weight.values"], expected[expected != 0])
    assert int(file["0.weight.offsets"][-1]) == left


@both
def test_a_file_of_a_weight_that_is_all_zero_has_one_element(name: str) -> None:
    model, sparse = small(name)
    with torch.no_grad():
        getattr(sparse.weights["0"].companion, name).fill_(-50.0 if name == "log_alpha" else 50.0)
    assert compress(model).tensors["0.weight.values"].tolist() == [0.0]


@both
def test_what_is_learned_beside_a_weight_gets_no_decay(name: str) -> None:
    model, sparse = small(name)
    model.append(nn.Linear(10, 2))
    learned = getattr(sparse.weights["0"].companion, name)
    rest, values, gates = sparse.param_groups(0.1, values_weight_decay=0.2, lr=0.5)
    assert [group["weight_decay"] for group in (rest, values, gates)] == [0.1, 0.2, 0.0]
    assert gates["params"] == [learned]
    assert gates["lr"] == 0.5
    assert all(p is not learned for p in (*rest["params"], *values["params"]))
    assert "lr" not in sparse.param_groups()[-1]


@both
def test_memory_counts_what_is_learned_with_its_moments_beside_the_weight(name: str) -> None:
    model, sparse = small(name)
    optimizer = sparse.attach(torch.optim.SGD(model.parameters(), lr=0.0, momentum=0.9))
    model(torch.randn(3, 12, dtype=torch.float64)).sum().backward()
    optimizer.step()
    memory = sparse.memory()
    assert memory.layers["0"]["companion"] == 3 * 8 * 120
    assert memory.layers["0"]["dense"] == 3 * 8 * 120
    assert memory.rest["total"] == 0


@both
def test_the_cut_leaves_a_plain_sparse_network_of_what_evaluation_used(name: str) -> None:
    model, sparse = small(name, cut_at=2)
    optimizer = sparse.attach(torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9))
    weight, x = sparse.weights["0"], torch.randn(3, 12, dtype=torch.float64)
    learned = getattr(weight.companion, name)
    before = None
    for step in range(4):
        (model(x).square().sum() + sparse.penalty()).backward()
        if step == 1:  # the last step with noise
            follower = copy.deepcopy(model)
            sparse.follow(follower)
        optimizer.step()
        optimizer.zero_grad(set_to_none=step % 2 == 0)
        if step == 0:
            assert weight.counts.backward == 120
        if step == 1:
            before = weight.alpha()
            assert 1 < weight.counts.forward == weight.counts.backward < 120
            assert torch.equal(weight.values, before[before != 0])
            assert learned.ndim == 0
            assert learned not in optimizer.state
            assert weight.companion.complexity(weight.values) == 0
            assert not sparse.penalty().requires_grad
            assert torch.equal(follower[0].weight.indices, weight.indices)
            assert [p.shape for p in follower.parameters()] == [p.shape for p in model.parameters()]
            assert torch.equal(model(x), model(x))
            torch.testing.assert_close(topkast.densify(model)(x), model(x))
    assert not torch.equal(weight.alpha(), before)  # what is left goes on learning
    assert sparse.stats()["0"].evaluated == weight.counts.forward
    sparse.refresh()
    assert weight.counts.forward == weight.values.numel()


@both
def test_the_cut_takes_what_the_step_before_left(name: str) -> None:
    """By hand: the same steps without a cut, and then what evaluation uses."""
    whole, cut = small(name), small(name, cut_at=3)
    for model, sparse in (whole, cut):
        optimizer = sparse.attach(torch.optim.SGD(model.parameters(), lr=0.05))
        torch.manual_seed(7)
        for _ in range(3):
            x = torch.randn(4, 12, dtype=torch.float64)
            (model(x).square().mean() + 1e-2 * sparse.penalty()).backward()
            optimizer.step()
            optimizer.zero_grad()
    assert torch.equal(cut[1].weights["0"].alpha(), whole[1].weights["0"].alpha())
    assert not whole[1].weights["0"].alpha().all()


@both
def test_a_cut_of_everything_leaves_one_element(name: str) -> None:
    model, sparse = small(name, cut_at=1)
    with torch.no_grad():
        getattr(sparse.weights["0"].companion, name).fill_(-50.0 if name == "log_alpha" else 50.0)
    optimizer = sparse.attach(torch.optim.SGD(model.parameters(), lr=0.0))
    model(torch.randn(3, 12, dtype=torch.float64)).sum().backward()
    optimizer.step()
    assert sparse.weights["0"].counts.forward == 1
    assert sparse.weights["0"].values.tolist() == [0.0]


@both
@pytest.mark.parametrize(("saved_at", "loaded_at"), [(3, 0), (9, 0), (9, 3), (3, 9)])
def test_a_state_loads_before_and_after_the_cut(name: str, saved_at: int, loaded_at: int) -> None:
    method = MAKES[name](cut_at=7)
    state = io.BytesIO()
    saved = Training.start(method).run(0, saved_at)
    torch.save(saved.model.state_dict(), state)
    state.seek(0)
    other = Training.start(method, seed=1).run(0, loaded_at)
    other.model.load_state_dict(torch.load(state, weights_only=True))
    saved.model.eval()
    other.model.eval()
    ids, _ = batch(0)
    assert torch.equal(other.model(ids), saved.model(ids))
    for weight, twin in zip(saved.sparse.weights.values(), other.sparse.weights.values(), strict=True):
        assert getattr(twin.companion, name).shape == getattr(weight.companion, name).shape
        assert twin.companion.is_settled == (saved_at == 9)


@both
def test_a_settled_state_is_refused_where_nothing_is_ever_cut(name: str) -> None:
    state = Training.start(MAKES[name](cut_at=2)).run(0, 3).model.state_dict()
    key = f"hidden.weight.companion.{name}"
    training = Training.start(MAKES[name]())
    mine = training.model.state_dict()
    with pytest.raises(ValueError, match=rf"companion.{name} must have shape \(4608,\), got \(\)"):
        training.model.load_state_dict({**mine, key: state[key]})


@both
@pytest.mark.parametrize("steps", [3, 9])
def test_copies_and_pickles_go_on_alike(name: str, steps: int) -> None:
    training = Training.start(MAKES[name](cut_at=7)).run(0, steps)
    twins = [copy.deepcopy(training.model), pickle.loads(pickle.dumps(training.model))]
    ids, _ = batch(0)
    for twin_model in twins:
        torch.manual_seed(3)
        expected = training.model(ids)
        torch.manual_seed(3)
        assert torch.equal(twin_model(ids), expected)
        weights = [m.weight for m in twin_model.modules() if isinstance(m, topkast.nn.SparseLayer)]
        with torch.no_grad():
            for weight in weights:
                getattr(weight.companion, name).add_(1.0)
        torch.manual_seed(3)
        assert torch.equal(training.model(ids), expected)  # a copy has gates of its own


def test_flops_are_dense_until_the_cut_and_sparse_after_it() -> None:
    training = Training.start(MAKES["log_alpha"](cut_at=7)).run(0, 6)
    ids, _ = batch(0)
    assert training.sparse.flops(ids).training_fraction == 1.0
    training.run(6, 8)
    counts = training.sparse.weights["hidden"].counts
    flops = {layer.name: layer for layer in training.sparse.flops(ids).layers}
    assert counts.forward_density < 1
    assert flops["hidden"].forward_density == flops["hidden"].weight_grad_density == counts.forward_density
