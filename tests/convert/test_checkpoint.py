"""Checkpoints go on bit for bit, and a bad one changes nothing."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import topkast


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(20, 12)
        self.conv = nn.Conv1d(12, 12, 3, padding=1)
        self.norm = nn.BatchNorm1d(12)
        self.head = nn.Linear(12, 20)
        self.head.weight = self.embedding.weight

    def forward(self, ids: Tensor) -> Tensor:
        h = self.norm(self.conv(self.embedding(ids).transpose(1, 2)))
        return self.head(torch.tanh(h).transpose(1, 2))


METHODS: dict[str, Callable[[], topkast.Method]] = {
    "magnitude": lambda: topkast.TopKAST(0.8, 0.6, refresh_every=3, exchange_every=3),
    "two clocks": lambda: topkast.TopKAST(0.8, 0.6, refresh_every=1, exchange_every=6),
    "two clocks, stopping": lambda: topkast.TopKAST(
        0.8, 0.6, refresh_every=2, exchange_every=6, explore_until=9
    ),
    "random": lambda: topkast.TopKAST(0.8, 0.6, refresh_every=3, exchange_every=3, exploration="random"),
    "stopping": lambda: topkast.TopKAST(0.8, 0.6, refresh_every=3, exchange_every=3, explore_until=9),
    "stopped": lambda: topkast.TopKAST(0.8, 0.6, refresh_every=3, exchange_every=3, explore_until=4),
    "static": lambda: topkast.Static(0.8),
}


def build(method: topkast.Method, engine: str) -> tuple[nn.Module, topkast.Handle, torch.optim.Optimizer]:
    model = Net()
    sparse = topkast.sparsify(model, method, engine=engine)
    optimizer = torch.optim.AdamW(sparse.param_groups(0.1), lr=0.02)
    return model, sparse, sparse.attach(optimizer)


def train(
    model: nn.Module, sparse: topkast.Handle, optimizer: torch.optim.Optimizer, first: int, last: int
) -> None:
    for step in range(first, last):
        ids = torch.randint(20, (4, 7), generator=torch.Generator().manual_seed(step))
        loss = nn.functional.cross_entropy(model(ids).flatten(0, 1), ids.flatten()) + 1e-3 * sparse.penalty()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


@pytest.mark.parametrize("method", METHODS)
def test_a_fresh_model_continues_bit_for_bit(method: str, engine: str) -> None:
    model, sparse, optimizer = build(METHODS[method](), engine)
    train(model, sparse, optimizer, 0, 7)  # between two refreshes
    file = io.BytesIO()
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, file)
    train(model, sparse, optimizer, 7, 17)

    torch.manual_seed(999)  # other initial weights, another seed
    model2, sparse2, optimizer2 = build(METHODS[method](), engine)
    file.seek(0)
    checkpoint = torch.load(file, weights_only=True)
    model2.load_state_dict(checkpoint["model"])
    optimizer2.load_state_dict(checkpoint["optimizer"])
    train(model2, sparse2, optimizer2, 7, 17)

    assert model.state_dict().keys() == model2.state_dict().keys()
    for key, value in model.state_dict().items():
        assert torch.equal(value, model2.state_dict()[key]), key
    ours, theirs = optimizer.state_dict()["state"], optimizer2.state_dict()["state"]
    for index, state in ours.items():
        for key, value in state.items():
            assert torch.equal(value, theirs[index][key]), key
    assert sparse.stats() == sparse2.stats()


def state_of(model: nn.Module) -> dict[str, Tensor]:
    return {k: v.clone() for k, v in model.state_dict().items()}


def assert_unchanged(model: nn.Module, before: dict[str, Tensor]) -> None:
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())


def mutate(key: str, change: Callable[[Tensor], Any]) -> Callable[[dict[str, Tensor]], None]:
    def apply(state: dict[str, Tensor]) -> None:
        new = change(state[key].clone())
        if new is None:
            del state[key]
        else:
            state[key] = new

    return apply


def edit(slot: int, number: float) -> Callable[[Tensor], Tensor]:
    def apply(tensor: Tensor) -> Tensor:
        tensor[slot] = number
        return tensor

    return apply


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (mutate("conv.weight.indices", edit(0, -1)), r"layer 'conv' .*indices must lie in \[0, 432\), got -1"),
        (mutate("conv.weight.indices", edit(-1, 432)), r"layer 'conv' .*indices must lie in \[0, 432\), got 432"),
        (mutate("conv.weight.indices", lambda t: t.index_copy(0, torch.tensor([5]), t[4:5])), r"layer 'conv' .*duplicate"),
        (mutate("conv.weight.indices", lambda t: t.flip(0)), r"layer 'conv' .*unsorted"),
        (mutate("conv.weight.indices", lambda t: t.double()), r"layer 'conv' .*int32 or int64 tensor, got 1-D torch.float64"),
        (mutate("conv.weight.indices", lambda t: t[:-1]), r"layer 'conv' .*one entry per value"),
        (mutate("conv.weight.indices", lambda t: None), r"layer 'conv' .*indices missing; a state is loaded whole"),
        (mutate("conv.weight.active", lambda t: ~t & False), r"layer 'conv' .*\|A\| must be 86, got 0"),
        (mutate("conv.weight.active", lambda t: t.int()), r"layer 'conv' .*one bool per index"),
        (mutate("conv.weight.values", lambda t: t[:-1]), r"layer 'conv' .*\|B\| must be 173, got values of shape \(172,\); sparsify with the sparsity"),
        (mutate("conv.weight.step", lambda t: t - 9), r"layer 'conv' .*step must not be negative, got -9"),
        (mutate("conv.weight.step", lambda t: t.repeat(2)), r"layer 'conv' .*step must be one int64 number"),
        (mutate("conv.weight.values", edit(3, float("nan"))), r"layer 'conv' .*: values has numbers that are not finite in torch.float32; load a state from before"),
        (mutate("conv.weight.values", lambda t: t.double() * 1e300), r"layer 'conv' .*: values has numbers that are not finite in torch.float32"),
        (mutate("conv.weight.values", lambda t: t.to(torch.complex64)), r"layer 'conv' .*: values has numbers that are not finite"),
        (mutate("conv.weight.values", lambda t: "none"), r"layer 'conv' .*weight.values must be a tensor, got a str"),
        (mutate("conv.weight.reservoir.rest", edit(7, float("nan"))), r"layer 'conv' .*: reservoir.rest has numbers that are not finite in torch.float32"),
        (mutate("conv.weight.reservoir.rest", edit(-1, float("-inf"))), r"layer 'conv' .*: reservoir.rest has numbers that are not finite"),
        (mutate("conv.weight.reservoir.rest", lambda t: [1]), r"reservoir.rest must be a tensor, got a list"),
        (mutate("conv.weight.reservoir.rest", lambda t: t[:-1]), r"reservoir.rest must have shape \(432,\), got \(431,\)"),
        (mutate("conv.weight.reservoir.rest", lambda t: None), r"reservoir.rest missing; sparsify with the reservoir"),
    ],
)  # fmt: skip
def test_a_bad_state_names_the_layer_and_changes_nothing(
    change: Callable[[dict[str, Tensor]], None], message: str
) -> None:
    torch.manual_seed(1)
    state = state_of(build(METHODS["magnitude"](), "masked")[0])
    change(state)
    model, _, _ = build(METHODS["magnitude"](), "masked")
    before = state_of(model)
    with pytest.raises(ValueError, match=message):
        model.load_state_dict(state)
    assert_unchanged(model, before)  # also the layers that come before the bad one
    with pytest.raises(ValueError, match=message):
        model.conv.load_state_dict(
            {k.removeprefix("conv."): v for k, v in state.items() if k.startswith("conv.")}
        )
    assert_unchanged(model, before)


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("head.bias", torch.zeros(19), r"size mismatch for head.bias: .*\[19\]\) from checkpoint, .*\[20\]\)"),
        ("conv.bias", torch.zeros(12, 1), "size mismatch for conv.bias"),
        ("norm.weight", torch.zeros(()), "size mismatch for norm.weight"),
        ("norm.running_mean", torch.zeros(13), "size mismatch for norm.running_mean"),
        ("norm.num_batches_tracked", torch.zeros(2, dtype=torch.int64), "size mismatch for norm.num_batches"),
        ("norm.bias", [0.0] * 12, "norm.bias must be a tensor, got a list"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("strict", [True, False])
def test_a_dense_tensor_of_another_shape_changes_nothing(
    key: str, value: Any, message: str, strict: bool
) -> None:
    torch.manual_seed(1)
    state: dict[str, Any] = state_of(build(METHODS["magnitude"](), "masked")[0])
    state[key] = value
    model, _, _ = build(METHODS["magnitude"](), "masked")
    before = state_of(model)
    with pytest.raises(RuntimeError, match=rf"loading state_dict for Net:\s+{message}"):
        model.load_state_dict(state, strict=strict)
    assert_unchanged(model, before)


def test_a_layers_own_bias_of_another_shape_changes_nothing() -> None:
    layer = build(METHODS["magnitude"](), "masked")[0].conv
    before = state_of(layer)
    state = {k: v.clone() for k, v in before.items()} | {"bias": torch.zeros(3)}
    state["weight.values"] += 1
    with pytest.raises(RuntimeError, match=r"loading state_dict for \w+:\s+size mismatch for bias"):
        layer.load_state_dict(state)
    assert_unchanged(layer, before)


class Scaled(nn.Module):
    """Has what torch loads in ways of its own: a scalar, a lazy layer, and a hook that mends old states."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(6, 10)
        self.scale = nn.Parameter(torch.ones(()))
        self.lazy = nn.LazyLinear(4)
        self.register_buffer("scratch", torch.zeros(2), persistent=False)
        self.inner = nn.Sequential(nn.LayerNorm(10))
        self.inner.register_load_state_dict_pre_hook(self._mend)

    @staticmethod
    def _mend(module: nn.Module, state: dict[str, Tensor], prefix: str, *_: Any) -> None:
        state[prefix + "0.weight"] = state[prefix + "0.weight"].flatten()


def test_what_torch_loads_from_other_shapes_is_still_loaded() -> None:
    model = Scaled()
    topkast.sparsify(model, topkast.TopKAST(0.8, 0.5))
    state = {"scale": torch.full((1,), 3.0)}  # as torch 0.3 has saved it
    state["lazy.weight"], state["lazy.bias"] = torch.ones(4, 9), torch.ones(4)
    state["inner.0.weight"] = torch.full((2, 5), 7.0)
    state["scratch"] = torch.ones(5)  # not loaded
    model.load_state_dict(state, strict=False)
    assert model.scale.item() == 3
    assert model.lazy.weight.shape == (4, 9)
    assert torch.equal(model.inner[0].weight, torch.full((10,), 7.0))
    late = state | {"scale": torch.ones(2)}
    with pytest.raises(RuntimeError, match="size mismatch for scale"):
        model.load_state_dict(late, strict=False)


def test_a_state_of_another_sparsity_or_shape_is_refused() -> None:
    other = nn.Sequential(nn.Linear(6, 10))
    topkast.sparsify(other, topkast.TopKAST(0.9, 0.5))
    model = nn.Sequential(nn.Linear(6, 10))
    topkast.sparsify(model, topkast.TopKAST(0.8, 0.5))
    before = state_of(model)
    with pytest.raises(ValueError, match=r"layer '0'.*\|A\| must be 12, got 6; sparsify with the sparsity"):
        model.load_state_dict(other.state_dict())
    wide = nn.Sequential(nn.Linear(10, 6))
    topkast.sparsify(wide, topkast.TopKAST(0.8, 0.5))
    wide_state = wide.state_dict()
    wide_state["0.bias"] = before["0.bias"]
    assert wide_state["0.weight.values"].shape == before["0.weight.values"].shape
    with pytest.raises(ValueError, match=r"shape must be \(10, 6\), got \(6, 10\)"):
        model.load_state_dict(wide_state)
    assert_unchanged(model, before)


def test_a_dense_state_is_to_be_loaded_before_sparsify() -> None:
    dense = Net().state_dict()
    model, _, _ = build(METHODS["magnitude"](), "masked")
    with pytest.raises(
        ValueError, match=r"layer 'embedding'.*the state holds a dense weight; load it before sparsify"
    ):
        model.load_state_dict(dense)


def test_an_optimizer_state_without_its_model_is_caught_at_the_next_step() -> None:
    model, sparse, optimizer = build(METHODS["magnitude"](), "masked")
    train(model, sparse, optimizer, 0, 7)
    torch.manual_seed(5)
    model2, sparse2, optimizer2 = build(METHODS["magnitude"](), "masked")
    optimizer2.load_state_dict(optimizer.state_dict())
    before = state_of(model2)
    message = (
        r"the optimizer's state was saved with other sets than layer 'embedding' has now; load the model's"
    )
    with pytest.raises(RuntimeError, match=message):
        train(model2, sparse2, optimizer2, 7, 8)
    del before["norm.running_mean"], before["norm.running_var"], before["norm.num_batches_tracked"]
    assert all(torch.equal(model2.state_dict()[k], v) for k, v in before.items())
    model2.load_state_dict(model.state_dict())  # in this order it is fine as well
    optimizer2.zero_grad()
    train(model2, sparse2, optimizer2, 7, 8)


def test_loading_keeps_the_parameter_even_when_asked_to_assign() -> None:
    model, sparse, _ = build(METHODS["magnitude"](), "masked")
    held = sparse.weights["conv"].values
    model.load_state_dict(state_of(model), assign=True)
    assert sparse.weights["conv"].values is held


def test_loading_partially_leaves_the_rest_to_torch() -> None:
    model, _, _ = build(METHODS["magnitude"](), "masked")
    state = {k: v for k, v in state_of(model).items() if not k.startswith("conv.weight")}
    with pytest.raises(RuntimeError, match="Missing key"):
        model.load_state_dict(state)
    result: Any = model.load_state_dict(state, strict=False)
    assert "conv.weight.values" in result.missing_keys
