"""Sparse layers constructed by themselves, with the arguments of torch's."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import nn

import topkast

METHOD = topkast.TopKAST(0.9, 0.8, refresh_every=2, exchange_every=2)


@pytest.mark.parametrize(
    ("layer", "dense", "x"),
    [
        (lambda **o: topkast.nn.Linear(30, 20, **o), nn.Linear(30, 20), torch.randn(5, 30)),
        (
            lambda **o: topkast.nn.Linear(30, 20, bias=False, **o),
            nn.Linear(30, 20, bias=False),
            torch.randn(5, 30),
        ),
        (
            lambda **o: topkast.nn.Conv2d(6, 8, 3, padding=1, stride=2, groups=2, **o),
            nn.Conv2d(6, 8, 3, padding=1, stride=2, groups=2),
            torch.randn(2, 6, 9, 9),
        ),
        (lambda **o: topkast.nn.Conv1d(6, 8, 3, **o), nn.Conv1d(6, 8, 3), torch.randn(2, 6, 9)),
        (lambda **o: topkast.nn.Conv3d(2, 3, 3, **o), nn.Conv3d(2, 3, 3), torch.randn(1, 2, 5, 5, 5)),
        (lambda **o: topkast.nn.Embedding(50, 16, **o), nn.Embedding(50, 16), torch.randint(50, (4, 3))),
    ],
)
def test_it_computes_what_its_dense_copy_does_and_trains(
    layer: Any, dense: nn.Module, x: torch.Tensor
) -> None:
    model = nn.Sequential(layer(method=METHOD, seed=1))
    assert {n: p.shape for n, p in topkast.densify(model)[0].named_parameters()} == {
        n: p.shape for n, p in dense.named_parameters()
    }
    torch.testing.assert_close(model(x), topkast.densify(model)(x), rtol=1e-5, atol=1e-5)
    handle = topkast.Handle(model, METHOD)
    assert handle.weights["0"].reservoir.kind == "implicit"
    optimizer = handle.attach(torch.optim.SGD(model.parameters(), lr=0.05))
    before = float(model(x).square().mean().detach())
    for _ in range(20):
        model(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    assert float(model(x).square().mean().detach()) < before


def test_seed_and_name_decide_everything() -> None:
    states = [
        topkast.nn.Linear(30, 20, method=METHOD, seed=seed, name=name).state_dict()
        for seed, name in ((1, "a"), (1, "a"), (1, "b"), (2, "a"))
    ]
    assert all(torch.equal(states[0][key], states[1][key]) for key in states[0])
    for other in states[2:]:
        assert not torch.equal(states[0]["weight.indices"], other["weight.indices"])
        assert not torch.equal(states[0]["bias"], other["bias"])


def test_dtype_and_init() -> None:
    layer = topkast.nn.Linear(300, 200, method=METHOD, dtype=torch.float64, init=topkast.Normal(0.5), seed=0)
    assert layer.weight.values.dtype == layer.bias.dtype == torch.float64
    assert float(layer.theta().std()) == pytest.approx(0.5, rel=0.01)
    assert float(layer.bias.detach().abs().max()) <= 1 / math.sqrt(300)


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: topkast.nn.Linear(3, 4), TypeError, "method"),
        (lambda: topkast.nn.Conv1D(3, 4, method=METHOD), TypeError, "made by topkast.sparsify only"),
        (lambda: topkast.nn.Embedding(9, 4, padding_idx=0, method=METHOD), ValueError, "padding row"),
        (lambda: topkast.nn.Linear(3, 4, method=METHOD, engine="fast"), ValueError, "fast"),
        (
            lambda: topkast.nn.Linear(3, 4, method=METHOD, init="orthogonal"),
            ValueError,
            "'orthogonal' is not",
        ),
        (
            lambda: topkast.nn.Conv3d(3, 4, 3, method=METHOD, engine="native"),
            ValueError,
            "engine 'native' cannot compute this layer: native has no 3-D",
        ),
    ],
)
def test_what_cannot_be_is_refused(make: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        make()
