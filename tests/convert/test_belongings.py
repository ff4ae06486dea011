"""What users and frameworks put on a layer before `sparsify`: it moves along, or the layer stays dense."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import topkast

METHOD = topkast.TopKAST(0.8, 0.5)


class Named(nn.Linear):
    """A subclass that adds an attribute and nothing else."""

    def __init__(self, *sizes: int) -> None:
        super().__init__(*sizes)
        self.role = "query"


def doubled(layer: nn.Module) -> Callable[[Tensor], Tensor]:
    return lambda x: 2 * type(layer).forward(layer, x)


def spoil(layer: nn.Linear, how: str) -> None:
    if how == "hook":
        layer.weight.register_hook(lambda g: g * 0)
    elif how == "late hook":
        layer.weight.register_post_accumulate_grad_hook(lambda p: None)
    elif how == "forward":
        layer.forward = doubled(layer)
    elif how == "method":
        layer._load_from_state_dict = lambda *_: None
    elif how == "compiled":
        layer.compile(backend="eager")
    elif how == "parameter":
        layer.gain = nn.Parameter(torch.ones(6))
    elif how == "buffer":
        layer.register_buffer("mask", torch.ones(6, 6))
    elif how == "module":
        layer.inner = nn.Linear(6, 6)
    elif how == "state":
        layer.register_state_dict_post_hook(lambda *_: None)
    elif how == "loading":
        layer.register_load_state_dict_pre_hook(lambda *_: None)
    elif how == "tensor":
        layer.weight.main_grad = torch.zeros(6, 6)
    elif how == "name":
        layer.alpha = 16


GRADIENT = "its weight has a gradient hook, which expects a dense gradient; register it on `layer.weight.values` after sparsify"
STATE = "has hooks on its state_dict; register them after sparsify"
REASONS = {
    "hook": GRADIENT,
    "late hook": GRADIENT,
    "forward": "has a forward of its own",
    "method": "has a _load_from_state_dict of its own",
    "compiled": "is compiled by itself; compile it after sparsify",
    "parameter": "has parts that its sparse counterpart has not: gain",
    "buffer": "has parts that its sparse counterpart has not: mask",
    "module": "has parts that its sparse counterpart has not: inner",
    "state": STATE,
    "loading": STATE,
    "tensor": "its weight has a tensor as an attribute: main_grad",
    "name": "has an attribute 'alpha', a name that sparse layers use themselves",
}


@pytest.mark.parametrize("how", REASONS)
def test_a_layer_that_would_lose_something_stays_dense_and_says_what(how: str) -> None:
    model = nn.Sequential(nn.Linear(6, 6), nn.Linear(6, 6))
    spoil(model[0], how)
    layer, x = model[0], torch.randn(3, 6)
    before = layer(x)
    sparse = topkast.sparsify(model, METHOD)
    assert sparse.left_dense == {"0": REASONS[how]}
    assert f"left dense: 0 ({REASONS[how]})" in str(sparse)
    assert model[0] is layer
    assert torch.equal(layer(x), before)


@pytest.mark.parametrize(
    ("where", "how", "reason"),
    [
        ("in_proj_weight", "hook", f"in_proj_weight: {GRADIENT}"),
        ("in_proj_bias", "hook", f"in_proj_bias: {GRADIENT}"),
        ("out_proj", "hook", f"out_proj: {GRADIENT}"),
        ("out_proj", "buffer", "out_proj: has parts that its sparse counterpart has not: mask"),
        ("", "forward", "has a forward of its own"),
        ("", "parameter", "has parts that its sparse counterpart has not: gain"),
        ("", "loading", STATE),
    ],
)
def test_attention_that_would_lose_something_stays_dense(where: str, how: str, reason: str) -> None:
    model = nn.ModuleDict({"attention": nn.MultiheadAttention(6, 2), "last": nn.Linear(6, 6)})
    part: Any = getattr(model["attention"], where) if where else model["attention"]
    if isinstance(part, nn.Parameter):
        part.register_hook(lambda g: g)
    else:
        spoil(part, how)
    sparse = topkast.sparsify(model, METHOD)
    assert sparse.left_dense == {"attention": reason}
    assert type(model["attention"]) is nn.MultiheadAttention


def test_attention_of_another_class_stays_dense_as_a_whole() -> None:
    class Attention(nn.MultiheadAttention):
        pass

    model = nn.ModuleDict({"attention": Attention(6, 2), "last": nn.Linear(6, 6)})
    sparse = topkast.sparsify(model, METHOD)
    assert sparse.left_dense == {"attention": "Attention has no sparse counterpart"}
    x = torch.randn(5, 3, 6)
    model["attention"](x, x, x)


def test_a_removed_gradient_hook_is_none() -> None:
    model = nn.Sequential(nn.Linear(6, 6))
    model[0].weight.register_hook(lambda g: g).remove()
    assert list(topkast.sparsify(model, METHOD).layers) == ["0"]


def full_model() -> nn.ModuleDict:
    model = nn.ModuleDict(
        {
            "linear": Named(6, 6),
            "conv": nn.Conv2d(2, 4, 3, padding_mode="reflect", padding=1),
            "embedding": nn.Embedding(9, 6),
            "attention": nn.MultiheadAttention(6, 2),
        }
    )
    for layer in model.values():
        layer.custom = {"number": 5}
        layer._is_hf_initialized = True
    for weight in (model["linear"].weight, model["embedding"].weight, model["attention"].in_proj_weight):
        weight._no_weight_decay = True
    model["linear"].bias._no_weight_decay = True
    model["attention"].in_proj_bias._no_weight_decay = True
    return model


def test_attributes_move_to_the_sparse_layer_and_back() -> None:
    model = full_model()
    originals = {name: set(vars(layer)) for name, layer in model.items()}
    sparse = topkast.sparsify(model, METHOD)
    assert sparse.left_dense == {}
    for layer in model.values():
        assert (layer.custom, layer._is_hf_initialized) == ({"number": 5}, True)
    assert model["linear"].role == "query"
    for name in ("linear", "embedding", "attention.q_proj", "attention.v_proj"):
        assert sparse.weights[name].values._no_weight_decay
    assert model["attention"].k_proj.bias._no_weight_decay
    assert not hasattr(sparse.weights["conv"].values, "_no_weight_decay")

    model["conv"].late = "said of the sparse layer"
    for again in (model, copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        dense = topkast.densify(again)
        assert {n: set(vars(layer)) for n, layer in dense.items()} == {
            **originals,
            "conv": originals["conv"] | {"late"},
        }
        assert dense["linear"].custom == {"number": 5}
        assert dense["linear"].custom is not again["linear"].custom  # a copy, as all of the model
    dense = topkast.densify(model)
    parameters = (dense["linear"].weight, dense["linear"].bias, dense["embedding"].weight)
    packed = (dense["attention"].in_proj_weight, dense["attention"].in_proj_bias)
    assert all(p._no_weight_decay for p in (*parameters, *packed))


def test_forward_hooks_move_to_the_sparse_layer_and_back() -> None:
    model, calls = nn.Sequential(nn.Linear(6, 6)), []
    handle = model[0].register_forward_hook(lambda module, *_: calls.append(type(module)))
    topkast.sparsify(model, METHOD)
    x = torch.randn(2, 6)
    model(x)
    dense = topkast.densify(model)
    dense(x)
    assert calls == [topkast.nn.Linear, nn.Linear]
    handle.remove()  # the sparse layer's; the dense model is a copy
    model(x)
    assert len(calls) == 2
    dense(x)
    assert len(calls) == 3
