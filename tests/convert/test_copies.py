"""What users do with models: copy, pickle, move, cast, average."""

from __future__ import annotations

import copy
import io
import pickle

import pytest
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

import topkast


def setup(refresh_every: int = 2) -> tuple[nn.Sequential, topkast.Handle, torch.optim.Optimizer]:
    model = nn.Sequential(nn.Linear(8, 12), nn.Tanh(), nn.Linear(12, 3))
    sparse = topkast.sparsify(model, topkast.TopKAST(0.8, 0.5, refresh_every=refresh_every))
    return model, sparse, sparse.attach(torch.optim.SGD(model.parameters(), lr=0.3, momentum=0.9))


def step(model: nn.Module, optimizer: torch.optim.Optimizer, seed: int = 0) -> None:
    dtype = next(model.parameters()).dtype
    x = torch.randn(16, 8, generator=torch.Generator().manual_seed(seed)).to(dtype)
    model(x).float().square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()


def test_deepcopy_and_pickle_are_independent_and_complete() -> None:
    model, sparse, optimizer = setup()
    for i in range(3):
        step(model, optimizer, i)
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    x = torch.randn(4, 8)
    for twin in (
        copy.deepcopy(model),
        pickle.loads(pickle.dumps(model)),
        torch.load(file, weights_only=False),
    ):
        assert all(torch.equal(v, model.state_dict()[k]) for k, v in twin.state_dict().items())
        assert torch.equal(twin(x), model(x))
        handle = topkast.Handle(twin, sparse.method)
        own = handle.attach(torch.optim.SGD(twin.parameters(), lr=0.3))
        before = copy.deepcopy(model.state_dict())
        for i in range(4):
            step(twin, own, i)
        assert handle.weights["0"].steps == 7
        assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())
    step(model, optimizer)  # copies that were trained on their own do not disturb the model's refresh


def test_a_handle_can_be_copied_with_its_model() -> None:
    model, sparse, optimizer = setup()
    step(model, optimizer)
    twin = copy.deepcopy(sparse)
    assert twin.model is not model
    assert twin.weights["0"] is twin.model[0].weight
    own = twin.attach(torch.optim.SGD(twin.model.parameters(), lr=0.3))
    step(twin.model, own)
    assert (sparse.weights["0"].steps, twin.weights["0"].steps) == (1, 2)


def test_a_snapshot_is_a_snapshot() -> None:
    model, _, optimizer = setup()
    best = copy.deepcopy(model)
    before = copy.deepcopy(best.state_dict())
    for i in range(6):
        step(model, optimizer, i)
    assert all(torch.equal(v, before[k]) for k, v in best.state_dict().items())
    best.load_state_dict(model.state_dict())  # keeping the best so far
    for i in range(4):
        step(model, optimizer, i)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
def test_casting_keeps_the_sets_and_goes_on(dtype: torch.dtype) -> None:
    model, sparse, optimizer = setup()
    for i in range(2):
        step(model, optimizer, i)
    masks = {n: (w.forward_mask(), w.backward_mask()) for n, w in sparse.weights.items()}
    held = sparse.weights["0"].values
    model.to(dtype)
    assert sparse.weights["0"].values is held
    for name, weight in sparse.weights.items():
        assert weight.dtype == weight.theta().dtype == dtype
        assert weight.indices.dtype == torch.int32
        assert torch.equal(weight.forward_mask(), masks[name][0])
        assert torch.equal(weight.backward_mask(), masks[name][1])
    own = torch.optim.SGD(model.parameters(), lr=0.1)
    sparse.detach(optimizer)
    sparse.attach(own)
    for i in range(4):
        step(model, own, i)
    assert sparse.weights["0"].steps == 6


def test_moving_to_the_meta_device_keeps_the_shape_of_things() -> None:
    model, sparse, _ = setup()
    model.to("meta")
    assert sparse.weights["0"].values.is_meta
    assert sparse.weights["0"].indices.is_meta


def test_evaluation_and_freezing() -> None:
    model, sparse, optimizer = setup(refresh_every=1)
    model.eval()
    with torch.no_grad():
        y = model(torch.randn(4, 8))
    assert not y.requires_grad
    with torch.inference_mode():
        model(torch.randn(4, 8))
    model.train()
    model.requires_grad_(False)
    model[0].weight.requires_grad_(True)
    thetas = {n: w.theta() for n, w in sparse.weights.items()}
    step(model, optimizer)
    assert not torch.equal(sparse.weights["0"].theta(), thetas["0"])
    assert torch.equal(sparse.weights["2"].theta(), thetas["2"])


def test_an_average_by_slot_is_refused_before_it_can_mix_weights() -> None:
    model, _, optimizer = setup(refresh_every=3)
    averaged = AveragedModel(model)
    for i in range(2):
        step(model, optimizer, i)
        averaged.update_parameters(model)
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(
        RuntimeError, match=r"a copy of layer '0' has been written to since it was copied.*`handle.follow"
    ):
        step(model, optimizer)
    for key in ("0.weight.indices", "2.weight.indices"):
        assert torch.equal(model.state_dict()[key], before[key])


def test_an_average_that_nobody_keeps_any_more_is_no_obstacle() -> None:
    model, _, optimizer = setup(refresh_every=2)
    averaged = AveragedModel(model)
    averaged.update_parameters(model)
    step(model, optimizer)
    averaged.update_parameters(model)
    del averaged
    for i in range(3):
        step(model, optimizer, i)


@pytest.mark.parametrize("kind", ["ema", "swa"])
def test_a_followed_average_stays_with_its_weights(kind: str) -> None:
    """Against an average kept in dense coordinates, for elements that stayed in B all the time."""
    model, sparse, optimizer = setup(refresh_every=2)
    average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.8) if kind == "ema" else None)
    sparse.follow(average)
    dense = {n: w.theta() for n, w in sparse.weights.items()}
    always = {n: w.backward_mask() for n, w in sparse.weights.items()}
    start = {n: m.clone() for n, m in always.items()}
    for i in range(12):
        step(model, optimizer, i)
        average.update_parameters(model)
        for name, weight in sparse.weights.items():
            always[name] &= weight.backward_mask()
            weightage = (0.2 if kind == "ema" else 1 / (i + 1)) if i else 1.0
            dense[name] = dense[name].lerp(weight.theta(), weightage)
    followers = topkast.Handle(average.module, sparse.method).weights
    for name, weight in sparse.weights.items():
        assert torch.equal(followers[name].indices, weight.indices)
        assert torch.equal(followers[name].active, weight.active)
        assert not torch.equal(always[name], start[name])  # B did move
        got = followers[name].theta()[always[name]]
        torch.testing.assert_close(got, dense[name][always[name]], rtol=1e-5, atol=1e-6)
    assert torch.isfinite(average(torch.randn(4, 8))).all()


def test_follow_wants_a_copy_of_this_model() -> None:
    model, sparse, optimizer = setup(refresh_every=1)
    with pytest.raises(ValueError, match="this is the model itself, not a copy of it"):
        sparse.follow(model)
    with pytest.raises(ValueError, match="the copy has 0 sparse weights, the model has 2"):
        sparse.follow(nn.Sequential(nn.Linear(8, 12)))
    late = copy.deepcopy(model)
    for i in range(15):
        step(model, optimizer, i)
    with pytest.raises(
        ValueError, match=r"the sets of layer '0' differ between the copy and the model; copy the model"
    ):
        sparse.follow(late)


def test_buffers_changed_behind_the_back_are_checked_again() -> None:
    """The Plan is rebuilt from the buffers, and hostile indices do not get through."""
    model, sparse, _ = setup()
    x = torch.randn(4, 8)
    before = model(x)
    weight = sparse.weights["0"]
    weight.indices[0] = 10**6
    with pytest.raises(ValueError, match=r"layer '0': indices must lie in \[0, 96\), got 1000000"):
        model(x)
    weight.indices[0] = 0
    weight.indices.sort()
    assert model(x).shape == before.shape
