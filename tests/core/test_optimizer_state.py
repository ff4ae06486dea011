from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import topkast

# Every element-wise optimizer of torch, in the forms that differ in state or code path.
OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "SGD": lambda p: torch.optim.SGD(p, lr=0.1),
    "SGD momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
    "SGD fused": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, fused=True),
    "Adam foreach": lambda p: torch.optim.Adam(p, lr=0.01, foreach=True),
    "Adam fused": lambda p: torch.optim.Adam(p, lr=0.01, fused=True),
    "Adam amsgrad": lambda p: torch.optim.Adam(p, lr=0.01, amsgrad=True),
    "Adam tensor lr": lambda p: torch.optim.Adam(p, lr=torch.tensor(0.01)),
    "AdamW": lambda p: torch.optim.AdamW(p, lr=0.01),
    "RAdam": lambda p: torch.optim.RAdam(p, lr=0.01),
    "NAdam": lambda p: torch.optim.NAdam(p, lr=0.01),
    "Adamax": lambda p: torch.optim.Adamax(p, lr=0.01),
    "RMSprop": lambda p: torch.optim.RMSprop(p, lr=0.01, momentum=0.9, centered=True),
    "Adagrad": lambda p: torch.optim.Adagrad(p, lr=0.1, initial_accumulator_value=0.3),
    "Adagrad fused": lambda p: torch.optim.Adagrad(p, lr=0.1, fused=True),
    "Adadelta": lambda p: torch.optim.Adadelta(p),
    "ASGD": lambda p: torch.optim.ASGD(p, lr=0.01),
    "Rprop": lambda p: torch.optim.Rprop(p, lr=0.02),
}
# What an element new to B starts with, where it is not zero.
INITIAL = {("Adagrad", "sum"): 0.3, ("Rprop", "step_size"): 0.02}


def setup(make: Callable[[Any], torch.optim.Optimizer]) -> tuple[topkast.Handle, torch.optim.Optimizer]:
    model = nn.Sequential(nn.Linear(8, 12), nn.Tanh(), nn.Linear(12, 3))
    sparse = topkast.sparsify(model, topkast.TopKAST(0.8, 0.5, refresh_every=1000, exchange_every=1000))
    return sparse, sparse.attach(make(model.parameters()))


def step(sparse: topkast.Handle, optimizer: torch.optim.Optimizer) -> None:
    sparse.model(torch.randn(16, 8)).square().sum().backward()
    optimizer.step()
    optimizer.zero_grad()


def by_position(weight: Any, state: dict[str, Any]) -> dict[str, dict[int, float]]:
    positions = weight.indices.tolist()
    return {
        name: dict(zip(positions, entry.tolist(), strict=True))
        for name, entry in state.items()
        if isinstance(entry, torch.Tensor) and entry.ndim == 1
    }


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_state_follows_its_weight_in_place(name: str) -> None:
    sparse, optimizer = setup(OPTIMIZERS[name])
    for _ in range(5):
        step(sparse, optimizer)
    weight = sparse.layers["0"].weight
    state = optimizer.state.get(weight.values, {})
    tensors = {k: v for k, v in state.items() if isinstance(v, torch.Tensor)}
    scalars = {k: v.clone() for k, v in tensors.items() if v.ndim == 0}
    before = by_position(weight, state)
    values_before = dict(zip(weight.indices.tolist(), weight.values.tolist(), strict=True))
    parameter = weight.values
    with torch.no_grad():
        weight.values[::2] *= 0.01  # half of B leaves, much of it
    sparse.refresh()

    assert weight.values is parameter
    after = by_position(weight, state)
    entrants = set(weight.indices.tolist()) - set(values_before)
    assert entrants
    for key, old in before.items():
        for position, number in after[key].items():
            if position in entrants:
                expected = INITIAL.get((name, key), 0.0)
                if (name, key) == ("ASGD", "ax"):  # the average of a weight that has not moved: itself
                    expected = float(weight.theta().flatten()[position])
                assert number == pytest.approx(expected), (key, position)
            else:
                assert number == old[position], (key, position)
    for key, value in tensors.items():
        assert state[key] is value  # in place
    for key, value in scalars.items():
        assert torch.equal(state[key], value)
    step(sparse, optimizer)  # and it goes on


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda p: torch.optim.LBFGS(p), "LBFGS cannot train sparse values: its history is one flat vector"),
        (
            lambda p: torch.optim.Adafactor(p),
            "Adafactor cannot train sparse values: its second moment is factored",
        ),
        (
            lambda p: torch.optim.SparseAdam(list(p)),
            "SparseAdam cannot train sparse values: it wants gradients",
        ),
    ],
)
def test_optimizers_that_mix_elements_are_refused_by_name(
    make: Callable[[Any], torch.optim.Optimizer], message: str
) -> None:
    model = nn.Sequential(nn.Linear(8, 12))
    sparse = topkast.sparsify(model, topkast.TopKAST(0.8, 0.5))
    with pytest.raises(TypeError, match=message):
        sparse.attach(make(model.parameters()))


def test_muon_is_refused_by_name() -> None:
    model = nn.Sequential(nn.Linear(8, 12))
    sparse = topkast.sparsify(model, topkast.TopKAST(0.8, 0.5))
    muon = torch.optim.Muon([nn.Parameter(torch.zeros(2, 2))])
    muon.add_param_group(
        {"params": [sparse.layers["0"].weight.values]}
    )  # its constructor checks, this does not
    with pytest.raises(
        TypeError, match="Muon cannot train sparse values: its update orthogonalises a matrix"
    ):
        sparse.attach(muon)


class Odd(torch.optim.SGD):
    """Keeps state of a shape that no rule covers."""

    def step(self, closure: Any = None) -> Any:  # type: ignore[override]
        for group in self.param_groups:
            for p in group["params"]:
                self.state[p]["history"] = [p.detach().clone()]


def test_unknown_state_is_refused_at_the_first_step() -> None:
    sparse, optimizer = setup(lambda p: Odd(p, lr=0.1))
    with pytest.raises(TypeError, match=r"Odd keeps 'history' for layer '0' as a list; only single numbers"):
        step(sparse, optimizer)


def test_state_that_is_there_already_is_looked_at_when_attached() -> None:
    model = nn.Sequential(nn.Linear(8, 12))
    sparse = topkast.sparsify(model, topkast.TopKAST(0.8, 0.5))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer.state[sparse.layers["0"].weight.values]["row"] = torch.zeros(12, 1)
    with pytest.raises(TypeError, match=r"SGD keeps 'row' for layer '0' as a tensor of shape \(12, 1\)"):
        sparse.attach(optimizer)


def test_no_state_of_dense_size() -> None:
    sparse, optimizer = setup(OPTIMIZERS["AdamW"])
    step(sparse, optimizer)
    for layer in sparse.layers.values():
        for entry in optimizer.state[layer.weight.values].values():
            assert entry.numel() <= layer.weight.counts.backward < layer.weight.numel()
