"""What users do with models: copy, pickle, move, cast, average."""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

import topkast


def setup(refresh_every: int = 2) -> tuple[nn.Sequential, topkast.Handle, torch.optim.Optimizer]:
    model = nn.Sequential(nn.Linear(8, 12), nn.Tanh(), nn.Linear(12, 3))
    sparse = topkast.sparsify(
        model, topkast.TopKAST(0.8, 0.5, refresh_every=refresh_every, exchange_every=refresh_every)
    )
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


def _assign(mine: nn.Parameter, its: nn.Parameter) -> None:
    mine.data = 0.9 * mine.data + 0.1 * its.data


@pytest.mark.parametrize(
    "write",
    [
        _assign,
        lambda mine, its: mine.data.mul_(0.9).add_(its.data, alpha=0.1),
        lambda mine, its: mine.data.copy_(0.5 * its.data),
    ],
)
def test_an_average_written_behind_the_version_counter_is_refused(write: Callable[..., None]) -> None:
    """Momentum encoders and target networks write so."""
    model, sparse, optimizer = setup(refresh_every=3)
    target = copy.deepcopy(model)
    for i in range(2):
        step(model, optimizer, i)
        for mine, its in zip(target.parameters(), model.parameters(), strict=True):
            write(mine, its)
    with pytest.raises(RuntimeError, match="a copy of layer '0' has been written to since it was copied"):
        step(model, optimizer)
    target.load_state_dict(model.state_dict())  # a hard update brings the sets along
    sparse.refresh()


def test_a_copy_that_is_only_cast_or_moved_is_no_average() -> None:
    model, sparse, _ = setup()
    copy.deepcopy(model).double()
    twin = copy.deepcopy(model).to(torch.bfloat16)
    sparse.refresh()
    with torch.no_grad():
        twin[0].weight.values.mul_(0.5)
    twin.float()
    with pytest.raises(RuntimeError, match="has been written to"):
        sparse.refresh()


class ShadowParameters:
    """An average as a list of clones, as torch_ema and many loops keep it."""

    def __init__(self, model: nn.Module) -> None:
        self.shadow_params = [p.clone().detach() for p in model.parameters() if p.requires_grad]

    def update(self, model: nn.Module) -> None:
        with torch.no_grad():
            for shadow, p in zip(self.shadow_params, model.parameters(), strict=True):
                shadow.lerp_(p, 0.1)


def test_a_list_of_clones_that_is_averaged_is_noticed() -> None:
    model, _, optimizer = setup(refresh_every=1)
    snapshot = [p.detach().clone() for p in model.parameters()]
    for i in range(20):  # a snapshot that stays as it is is no average
        step(model, optimizer, i)
    del snapshot
    model, _, optimizer = setup(refresh_every=1)
    average = ShadowParameters(model)

    def train() -> None:
        for i in range(20):
            step(model, optimizer, i)
            average.update(model)

    message = r"as long as the values of layer '0' .*handle.follow"
    with pytest.warns(topkast.SlotAverageWarning, match=message) as seen:
        train()
    assert sum(w.category is topkast.SlotAverageWarning for w in seen) == 1


def test_a_followed_list_of_clones_stays_with_its_weights() -> None:
    """With a learning rate of zero nothing moves, so that an average is what is averaged."""
    model = nn.Sequential(nn.Linear(8, 12), nn.Tanh(), nn.Linear(12, 3))
    method = topkast.TopKAST(0.8, 0.5, refresh_every=1, exchange_every=1, exploration="random")
    sparse = topkast.sparsify(model, method)
    optimizer = sparse.attach(torch.optim.SGD(model.parameters(), lr=0.0))
    average = ShadowParameters(model)
    sparse.follow(average.shadow_params)
    first = sparse.weights["0"].indices.clone()
    for i in range(20):
        step(model, optimizer, i)
        average.update(model)
    assert not torch.equal(sparse.weights["0"].indices, first)
    for shadow, p in zip(average.shadow_params, model.parameters(), strict=True):
        torch.testing.assert_close(shadow, p.detach())


def test_follow_wants_one_tensor_for_each_parameter() -> None:
    model, sparse, _ = setup()
    with pytest.raises(ValueError, match=r"one for each of the model's parameters, .* \(4 of them\), got 1"):
        sparse.follow([torch.zeros(3)])
    with pytest.raises(ValueError, match="these are the model's own parameters"):
        sparse.follow(model.parameters())


@pytest.mark.parametrize("engine", ["native", "csr", "masked", "auto"])
def test_buffers_written_through_data_give_new_results(engine: str) -> None:
    """Federated and averaging code copies all parameters and buffers that way."""
    x = torch.randn(4, 8)
    networks = []
    for seed in (0, 1):
        torch.manual_seed(seed)
        model = nn.Sequential(nn.Linear(8, 12), nn.Tanh(), nn.Linear(12, 3))
        topkast.sparsify(model, topkast.TopKAST(0.8, 0.5), engine=engine)
        model(x).sum().backward()  # its Plans are made
        networks.append(model)
    mine, other = networks
    for a, b in zip(
        (*mine.buffers(), *mine.parameters()), (*other.buffers(), *other.parameters()), strict=True
    ):
        a.data.copy_(b.data)
    assert torch.equal(mine(x), other(x))
    mine[0].weight.indices.data[0] = 10**6  # and hostile ones are still not let through
    with pytest.raises(ValueError, match=r"layer '0': indices must lie in \[0, 96\), got 1000000"):
        mine(x)


@pytest.mark.parametrize("engine", ["native", "csr", "masked", "auto"])
def test_models_made_cast_or_copied_in_inference_mode(engine: str) -> None:
    def build() -> nn.Sequential:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(8, 12), nn.Tanh(), nn.Linear(12, 3))
        topkast.sparsify(model, topkast.TopKAST(0.8, 0.5), engine=engine)
        return model

    x = torch.randn(4, 8)
    with torch.no_grad():
        expected = build()(x)
    with torch.inference_mode():
        made = build()
        copied = copy.deepcopy(build())
        cast = build().double().float()
        for model in (made, copied, cast, copy.deepcopy(made)):
            torch.testing.assert_close(model(x), expected, rtol=1e-5, atol=1e-6)
        made[0].weight.active.copy_(made[0].weight.active.flip(0))  # nobody counts writes here
        torch.testing.assert_close(made(x), topkast.densify(made)(x))
    with torch.no_grad():
        torch.testing.assert_close(cast(x), expected, rtol=1e-5, atol=1e-6)
