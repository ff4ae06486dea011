"""Sparse layers against the dense torch layers that `densify` gives back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import topkast
from topkast.kernels.engines import ENGINES


def convolutions() -> dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]]:
    """Every argument of torch's convolutions, in one, two and three dimensions."""
    table: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {}
    kinds = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}
    options = {
        "plain": {},
        "1x1": {"kernel_size": 1},
        "no bias": {"bias": False},
        "stride": {"stride": 2, "padding": 1},
        "dilation": {"dilation": 2, "padding": 2},
        "same": {"padding": "same", "kernel_size": 4},
        "valid": {"padding": "valid"},
        "reflect": {"padding": 1, "padding_mode": "reflect"},
        "replicate": {"padding": 1, "padding_mode": "replicate"},
        "circular": {"padding": 1, "padding_mode": "circular"},
        "circular same": {"padding": "same", "kernel_size": 2, "padding_mode": "circular"},
        "groups": {"groups": 2},
        "depthwise": {"groups": 4},
    }
    for dims, kind in kinds.items():
        for name, option in options.items():
            arguments = {"kernel_size": 3, **option}
            table[f"{kind.__name__} {name}"] = (
                lambda kind=kind, a=arguments: kind(4, 8, **a),
                (2, 4, *(7,) * dims),
            )
    table["Conv2d uneven"] = (
        lambda: nn.Conv2d(4, 8, (3, 1), stride=(1, 2), padding=(2, 0), dilation=(2, 1)),
        (2, 4, 9, 8),
    )
    table["Conv2d unbatched"] = (lambda: nn.Conv2d(4, 8, 3), (4, 7, 7))
    return table


LAYERS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "Linear": (lambda: nn.Linear(6, 5), (3, 6)),
    "Linear no bias": (lambda: nn.Linear(6, 5, bias=False), (2, 3, 6)),
    "Linear one row": (lambda: nn.Linear(6, 5), (6,)),
    "Linear no rows": (lambda: nn.Linear(6, 5), (0, 6)),
    **convolutions(),
}


@pytest.mark.filterwarnings("ignore:Using padding='same'")  # torch on its own dense layer
@pytest.mark.parametrize("name", LAYERS)
def test_layer_equals_its_dense_form(name: str, engine: str) -> None:
    make, shape = LAYERS[name]
    model = nn.Sequential(make()).double()
    original = {k: v.clone() for k, v in model.state_dict().items()}
    sparse = topkast.sparsify(model, topkast.TopKAST(0.7, 0.4), engine=engine)
    dense = topkast.densify(model)
    layer = sparse.layers["0"]

    assert type(dense[0]) is type(make())
    assert torch.equal(layer.theta(), original["0.weight"])
    assert torch.equal(dense[0].weight, original["0.weight"] * layer.forward_mask())

    x = torch.randn(shape, dtype=torch.float64)
    x_sparse, x_dense = x.clone().requires_grad_(), x.clone().requires_grad_()
    y_sparse, y_dense = model(x_sparse), dense(x_dense)
    torch.testing.assert_close(y_sparse, y_dense, rtol=1e-10, atol=1e-10)
    upstream = torch.randn_like(y_dense)
    y_sparse.backward(upstream)
    y_dense.backward(upstream)
    torch.testing.assert_close(x_sparse.grad, x_dense.grad, rtol=1e-10, atol=1e-10)
    on_b = dense[0].weight.grad[layer.backward_mask()]
    torch.testing.assert_close(layer.weight.values.grad, on_b, rtol=1e-10, atol=1e-10)
    if layer.bias is not None:
        torch.testing.assert_close(layer.bias.grad, dense[0].bias.grad, rtol=1e-10, atol=1e-10)


EMPTY: dict[str, tuple[Callable[[], nn.Module], Tensor]] = {
    "Linear": (lambda: nn.Linear(64, 5), torch.zeros(0, 64)),
    "Linear of sequences": (lambda: nn.Linear(64, 5), torch.zeros(0, 3, 64)),
    "Embedding": (lambda: nn.Embedding(30, 8), torch.zeros(0, 3, dtype=torch.long)),
    "Conv1d": (lambda: nn.Conv1d(3, 4, 3, stride=2), torch.zeros(0, 3, 9)),
    "Conv1d 1x1": (lambda: nn.Conv1d(3, 4, 1), torch.zeros(0, 3, 9)),
    "Conv2d": (lambda: nn.Conv2d(3, 4, 3, padding=1), torch.zeros(0, 3, 4, 5)),
    "Conv2d 1x1": (lambda: nn.Conv2d(3, 4, 1, stride=2), torch.zeros(0, 3, 4, 5)),
    "Conv2d reflect": (lambda: nn.Conv2d(3, 4, 3, padding=1, padding_mode="reflect"), torch.zeros(0, 3, 4, 5)),
    "Conv2d groups": (lambda: nn.Conv2d(4, 4, 3, groups=2), torch.zeros(0, 4, 4, 5)),
    "Conv3d": (lambda: nn.Conv3d(3, 4, 2), torch.zeros(0, 3, 4, 5, 6)),
}  # fmt: skip


@pytest.mark.parametrize("name", EMPTY)
@pytest.mark.parametrize("engine", ["auto", *sorted(ENGINES)])
def test_an_empty_batch_gives_what_the_dense_layer_gives(name: str, engine: str) -> None:
    make, x = EMPTY[name]
    model = nn.Sequential(make())
    topkast.sparsify(model, topkast.TopKAST(0.8, 0.5), engine=engine)
    if x.is_floating_point():
        x = x.clone().requires_grad_()
    expected = topkast.densify(model)(x)
    y = model(x)
    assert y.shape == expected.shape
    y.sum().backward()
    assert torch.equal(model[0].weight.values.grad, torch.zeros_like(model[0].weight.values))
    if model[0].bias is not None:
        assert torch.equal(model[0].bias.grad, torch.zeros_like(model[0].bias))
    assert x.grad is None or x.grad.shape == x.shape
    assert (x.grad is not None) == x.is_floating_point()
    with torch.no_grad():
        assert model(x).shape == expected.shape


@pytest.mark.parametrize("padding_idx", [None, 0, -1])
def test_embedding_equals_its_dense_form(padding_idx: int | None, engine: str) -> None:
    model = nn.Sequential(nn.Embedding(9, 6, padding_idx=padding_idx, scale_grad_by_freq=True)).double()
    sparse = topkast.sparsify(model, topkast.TopKAST(0.5, 0.2), engine=engine)
    dense = topkast.densify(model)
    ids = torch.tensor([[0, 8, 3], [3, 3, 1]])
    y_sparse, y_dense = model(ids), dense(ids)
    assert torch.equal(y_sparse, y_dense)
    upstream = torch.randn_like(y_dense)
    y_sparse.backward(upstream)
    y_dense.backward(upstream)
    layer = sparse.layers["0"]
    expected = dense[0].weight.grad[layer.backward_mask()]
    torch.testing.assert_close(layer.weight.values.grad, expected, rtol=1e-12, atol=1e-12)


class Tied(nn.Module):
    """An embedding tied to the output layer, as most language models have it."""

    def __init__(self, functional: bool = False) -> None:
        super().__init__()
        self.embedding = nn.Embedding(11, 8, padding_idx=0)
        self.hidden = nn.Linear(8, 8)
        self.functional = functional
        if not functional:
            self.head = nn.Linear(8, 11, bias=False)
            self.head.weight = self.embedding.weight

    def forward(self, ids: Tensor) -> Tensor:
        h = torch.tanh(self.hidden(self.embedding(ids)))
        return F.linear(h, self.embedding.weight) if self.functional else self.head(h)


@pytest.mark.parametrize("functional", [False, True])
def test_tied_weights_stay_tied(functional: bool, engine: str) -> None:
    model = Tied(functional).double()
    sparse = topkast.sparsify(model, topkast.TopKAST(0.6, 0.3), engine=engine)
    assert list(sparse.weights) == ["embedding", "hidden"]
    dense = topkast.densify(model)
    if not functional:
        assert model.head.weight is model.embedding.weight
        assert dense.head.weight is dense.embedding.weight
        assert "= embedding" in str(sparse)
    assert (
        sum(p.numel() for p in model.parameters())
        == sum(w.counts.backward for w in sparse.weights.values()) + model.hidden.bias.numel()
    )
    ids = torch.tensor([[0, 1, 5], [7, 10, 5]])
    y_sparse, y_dense = model(ids), dense(ids)
    torch.testing.assert_close(y_sparse, y_dense, rtol=1e-10, atol=1e-10)
    y_sparse.square().sum().backward()
    y_dense.square().sum().backward()
    for name, weight in sparse.weights.items():
        expected = dense.get_submodule(name).weight.grad[weight.backward_mask()]
        torch.testing.assert_close(weight.values.grad, expected, rtol=1e-10, atol=1e-10)
    optimizer = sparse.attach(torch.optim.Adam(model.parameters(), lr=0.01))
    optimizer.step()
    assert sparse.weights["embedding"].steps == 1  # one weight, one step, whatever the number of layers


def test_a_sparse_weight_used_as_a_tensor_elsewhere_says_what_it_is() -> None:
    model = nn.Sequential(nn.Linear(6, 5))
    topkast.sparsify(model, topkast.TopKAST(0.7, 0.4))
    with pytest.raises(TypeError, match=r"matmul got the sparse weight of layer '0', which is not a tensor"):
        torch.matmul(torch.randn(3, 6), model[0].weight)
    with pytest.raises(TypeError, match="neither max_norm nor sparse gradients"):
        F.embedding(torch.tensor([0]), model[0].weight, max_norm=1.0)
    with pytest.raises(TypeError, match="cat got a sparse weight, which is not a tensor"):
        torch.cat([model[0].weight, torch.zeros(1, 6)])


WAYS_OUT = (
    r"; F.linear and F.embedding accept it, `theta\(\)` and `alpha\(\)` give dense .*`skip` in sparsify"
)


@pytest.mark.parametrize("name", ["squeeze", "abs", "data", "t", "T", "grad", "view", "normal_", "is_cuda"])
def test_a_tensors_attribute_on_a_sparse_weight_says_the_ways_out(name: str) -> None:
    model = nn.Sequential(nn.Linear(6, 5))
    topkast.sparsify(model, topkast.TopKAST(0.7, 0.4))
    weight = model[0].weight
    message = rf"the sparse weight of layer '0' is not a tensor and has no '{name}'{WAYS_OUT}"
    with pytest.raises(AttributeError, match=message):
        getattr(weight, name)
    assert not hasattr(weight, name)
    assert getattr(weight, name, None) is None


def _set(weight: Any) -> None:
    weight[0] = 1.0


X = torch.ones(5, 6)
OPERATIONS: dict[str, tuple[Callable[[Any], Any], str]] = {
    "-w": (lambda w: -w, "neg"),
    "abs(w)": (lambda w: abs(w), "abs"),
    "len(w)": (lambda w: len(w), "len"),
    "w[0]": (lambda w: w[0], "getitem"),
    "w[0] = 1": (_set, "setitem"),
    "list(w)": (lambda w: list(w), "iter"),
    "1.0 in w": (lambda w: 1.0 in w, "contains"),
    "w @ x": (lambda w: w @ X.t(), "matmul"),
    "x @ w": (lambda w: X @ w, "matmul"),
    "w * 2": (lambda w: w * 2, "mul"),
    "2 * w": (lambda w: 2 * w, "mul"),
    "w * x": (lambda w: w * X, "mul"),
    "x * w": (lambda w: X * w, "mul"),
    "w + 1": (lambda w: w + 1, "add"),
    "1 - w": (lambda w: 1 - w, "sub"),
    "w / 2": (lambda w: w / 2, "truediv"),
    "w ** 2": (lambda w: w**2, "pow"),
    "w > 0": (lambda w: w > 0, "gt"),
    "w <= 0": (lambda w: w <= 0, "le"),
    "numpy": (lambda w: np.asarray(w), "array"),
    "float(w)": (lambda w: float(w), "float"),
    "normal_": (lambda w: nn.init.normal_(w), "normal_"),
}


@pytest.mark.parametrize("case", OPERATIONS)
def test_an_operator_on_a_sparse_weight_says_the_ways_out(case: str) -> None:
    model = nn.Sequential(nn.Linear(6, 5))
    topkast.sparsify(model, topkast.TopKAST(0.7, 0.4))
    operate, name = OPERATIONS[case]
    message = rf"^r?{name} got the sparse weight of layer '0', which is not a tensor{WAYS_OUT}"
    with pytest.raises(TypeError, match=message):
        operate(model[0].weight)


def test_a_sparse_weight_is_still_a_module() -> None:
    model = nn.Sequential(nn.Linear(6, 5), nn.Linear(5, 5))
    topkast.sparsify(model, topkast.TopKAST(0.7, 0.4))
    first, second = model[0].weight, model[1].weight
    assert first
    assert first == first
    assert first != second
    assert {first: 1}[first] == 1
    assert first.values.numel() == first.indices.numel()
    with pytest.raises(AttributeError, match="'SparseWeight' object has no attribute 'no_such_thing'"):
        first.no_such_thing  # noqa: B018
    unborn = type(first).__new__(type(first))
    with pytest.raises(AttributeError, match="a sparse weight is not a tensor and has no 'name'"):
        unborn.name  # noqa: B018


def test_a_shared_module_is_swapped_wherever_it_stands(engine: str) -> None:
    shared = nn.Linear(6, 6)
    model = nn.ModuleDict({"first": shared, "again": nn.Sequential(shared, nn.ReLU())})
    sparse = topkast.sparsify(model, topkast.TopKAST(0.7, 0.4), engine=engine)
    assert model["first"] is model["again"][0]
    assert list(sparse.layers) == ["first"]
    dense = topkast.densify(model)
    assert dense["first"] is dense["again"][0]


def test_hooks_and_training_mode_are_kept() -> None:
    calls: list[str] = []
    model = nn.Sequential(nn.Linear(6, 5)).eval()
    model[0].register_forward_hook(lambda *_: calls.append("forward"))
    model[0].register_forward_pre_hook(lambda *_: calls.append("pre"))
    topkast.sparsify(model, topkast.TopKAST(0.7, 0.4))
    assert not model[0].training
    model(torch.randn(2, 6))
    assert calls == ["pre", "forward"]


def test_hugging_face_conv1d(engine: str) -> None:
    from transformers.pytorch_utils import Conv1D

    torch.manual_seed(0)
    model = nn.Sequential(Conv1D(12, 6)).double()
    sparse = topkast.sparsify(model, topkast.TopKAST(0.7, 0.4), engine=engine)
    dense = topkast.densify(model)
    assert type(dense[0]) is Conv1D
    x = torch.randn(2, 4, 6, dtype=torch.float64)
    y_sparse, y_dense = model(x), dense(x)
    torch.testing.assert_close(y_sparse, y_dense, rtol=1e-10, atol=1e-10)
    y_sparse.square().sum().backward()
    y_dense.square().sum().backward()
    expected = dense[0].weight.grad[sparse.layers["0"].backward_mask()]
    torch.testing.assert_close(sparse.layers["0"].weight.values.grad, expected, rtol=1e-10, atol=1e-10)


def test_a_hugging_face_model_trains_with_its_embeddings_tied(engine: str) -> None:
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(vocab_size=64, n_positions=16, n_embd=16, n_layer=2, n_head=2)
    model = GPT2LMHeadModel(config)
    sparse = topkast.sparsify(
        model, topkast.TopKAST(0.8, 0.6, refresh_every=2, exchange_every=2), engine=engine
    )
    assert model.lm_head.weight is model.transformer.wte.weight
    optimizer = sparse.attach(torch.optim.AdamW(model.parameters(), lr=1e-2))
    ids = torch.randint(64, (4, 12))
    losses = []
    for _ in range(8):
        loss = model(input_ids=ids, labels=ids).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    assert losses[-1] < losses[0]
