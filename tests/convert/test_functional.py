"""What torch builds on plain modules: activation checkpointing, functional calls, export of the dense model."""

from __future__ import annotations

import copy
import io
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils.checkpoint import checkpoint

import topkast


class Blocks(nn.Module):
    """Four segments, each weight in two of them, recomputed in the backward pass if that is asked for."""

    def __init__(self, use_reentrant: bool | None = None) -> None:
        super().__init__()
        self.use_reentrant = use_reentrant
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Linear(8, 64), nn.Tanh(), nn.Linear(64, 8)) for _ in range(2)
        )

    def forward(self, x: Tensor) -> Tensor:
        for block in (*self.blocks, *self.blocks):
            if self.use_reentrant is None:
                x = block(x)
            else:
                x = checkpoint(block, x, use_reentrant=self.use_reentrant)
        return x


def train(
    method: topkast.Method, use_reentrant: bool | None, engine: str
) -> tuple[list[float], topkast.Handle]:
    torch.manual_seed(0)
    model = Blocks(use_reentrant)
    sparse = topkast.sparsify(model, method, engine=engine, seed=0)
    optimizer = sparse.attach(torch.optim.Adam(model.parameters(), lr=0.01))
    losses = []
    for _ in range(6):
        for _ in range(2):
            loss = model(torch.randn(4, 8, requires_grad=True)).square().mean()
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses, sparse


METHODS = [
    topkast.TopKAST(0.8, 0.5, refresh_every=2, exchange_every=2),
    topkast.RigL(0.8, t_end=100, update_every=2),
]


@pytest.mark.parametrize("use_reentrant", [False, True])
@pytest.mark.parametrize("method", METHODS, ids=["topkast", "rigl"])
def test_recomputed_activations_change_nothing(
    method: topkast.Method, use_reentrant: bool, engine: str
) -> None:
    """The same sets too: RigL's gradients are noted once, whatever is computed twice."""
    losses, sparse = train(method, None, engine)
    again, recomputed = train(method, use_reentrant, engine)
    assert again == pytest.approx(losses, rel=1e-4)  # tied gradients are added up in another order
    for mine, theirs in zip(sparse.weights.values(), recomputed.weights.values(), strict=True):
        assert torch.equal(mine.indices, theirs.indices)
        torch.testing.assert_close(mine.values, theirs.values, rtol=1e-4, atol=1e-5)


def sparse_net(engine: str = "auto") -> tuple[nn.Sequential, topkast.Handle]:
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 3))
    return model, topkast.sparsify(model, topkast.TopKAST(0.8, 0.5), engine=engine, seed=0)


def test_functional_call_takes_other_values(engine: str) -> None:
    model, _ = sparse_net(engine)
    twin = copy.deepcopy(model)
    with torch.no_grad():
        for parameter in twin.parameters():
            parameter.copy_(torch.randn_like(parameter))
    others = {name: p.detach().clone().requires_grad_() for name, p in twin.named_parameters()}
    x, before = torch.randn(4, 8), {name: p.clone() for name, p in model.named_parameters()}
    y = torch.func.functional_call(model, others, (x,))
    assert torch.equal(y, twin(x))
    y.sum().backward()
    twin(x).sum().backward()
    for name, parameter in twin.named_parameters():
        assert torch.equal(others[name].grad, parameter.grad)
    for name, parameter in model.named_parameters():
        assert torch.equal(parameter, before[name])
        assert parameter.grad is None


def test_values_of_another_length_are_refused_by_functional_call(engine: str) -> None:
    model, _ = sparse_net(engine)
    short = {"0.weight.values": torch.randn(7)}
    with pytest.raises((ValueError, RuntimeError, IndexError)):
        torch.func.functional_call(model, short, (torch.randn(4, 8),))


@pytest.mark.parametrize("transform", [torch.func.grad, torch.func.jacrev, torch.vmap])
def test_transforms_are_refused_by_name(transform: Callable[..., Any]) -> None:
    model, _ = sparse_net()
    message = r"layer '0' cannot take part in torch.func's transforms .* torch.autograd.grad"
    with pytest.raises(RuntimeError, match=message):
        transform(lambda x: model(x).sum())(torch.randn(4, 8))


class Tagger(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(20, 16)
        self.conv = nn.Conv1d(16, 16, 3, padding=1)
        self.layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
        self.out = nn.Linear(16, 20)
        self.out.weight = self.embedding.weight

    def forward(self, ids: Tensor) -> Tensor:
        h = self.embedding(ids)
        return self.out(self.layer(h + self.conv(h.transpose(1, 2)).transpose(1, 2)))


def test_the_dense_model_is_exported_with_any_batch_size() -> None:
    model = Tagger().eval()
    topkast.sparsify(model, topkast.TopKAST(0.8, 0.5))
    dense = topkast.densify(model)
    batch = torch.export.Dim("batch", min=2, max=64)
    program = torch.export.export(
        dense, (torch.randint(20, (3, 7)),), dynamic_shapes={"ids": {0: batch}}, strict=True
    )
    ids = torch.randint(20, (5, 7))
    torch.testing.assert_close(program.module()(ids), model(ids), rtol=1e-4, atol=1e-5)
    assert not any("topkast" in str(node.target) for node in program.graph.nodes)


def _onnx(model: nn.Module, x: Tensor) -> None:
    torch.onnx.export(model, (x,), io.BytesIO(), dynamo=False)


RECORDERS: dict[str, Callable[[nn.Module, Tensor], Any]] = {
    "torch.jit.trace": torch.jit.trace,
    "make_fx": lambda model, x: make_fx(model)(x),
    "TorchScript ONNX": _onnx,
}


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
@pytest.mark.parametrize("grad", [True, False])
@pytest.mark.parametrize("recorder", RECORDERS)
@pytest.mark.parametrize("kind", ["linear", "conv", "embedding"])
def test_what_would_record_a_wrong_graph_is_refused(
    kind: str, recorder: str, grad: bool, engine: str
) -> None:
    layers = {"linear": nn.Linear(6, 5), "conv": nn.Conv2d(2, 3, 3), "embedding": nn.Embedding(9, 4)}
    inputs = {"linear": torch.randn(2, 6), "conv": torch.randn(2, 2, 5, 5), "embedding": torch.arange(6)}
    model = nn.Sequential(layers[kind])
    topkast.sparsify(model, topkast.TopKAST(0.8, 0.5), engine=engine)
    message = r"the sparse layer '0' cannot be recorded by .*`topkast.densify\(model\)`.*torch.export"
    with torch.set_grad_enabled(grad), pytest.raises(RuntimeError, match=message):
        RECORDERS[recorder](model, inputs[kind])
    if recorder == "torch.jit.trace":  # the way out
        traced = torch.jit.trace(topkast.densify(model), inputs[kind])
        torch.testing.assert_close(traced(inputs[kind]), model(inputs[kind]), rtol=1e-5, atol=1e-6)
