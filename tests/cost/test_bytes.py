"""Bytes of weights and of models: what is held is counted, and the dense model beside it."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import topkast
from topkast import TopKAST, sparsify
from topkast.cost.memory import dense_bytes, plan_bytes, sparse_bytes
from topkast.kernels.plan import Plan


def trained(reservoir: str) -> tuple[nn.Module, topkast.Handle]:
    device = "meta" if reservoir == "implicit" else "cpu"
    with torch.device(device):
        model = nn.Sequential(nn.Linear(512, 256), nn.ReLU(), nn.Linear(256, 512))
    method = topkast.TopKAST(0.9, 0.8, refresh_every=2, exchange_every=2)
    handle = topkast.sparsify(model, method, engine="native", reservoir=reservoir)  # pyright: ignore
    optimizer = handle.attach(torch.optim.Adam(model.parameters(), lr=1e-4))
    for _ in range(3):
        model(torch.randn(8, 512)).square().mean().backward()
        optimizer.step()
    return model, handle


def test_parts_add_up_and_the_dense_model_is_the_real_one() -> None:
    _, handle = trained("implicit")
    memory = handle.memory()
    dense = nn.Sequential(nn.Linear(512, 256), nn.ReLU(), nn.Linear(256, 512))
    optimizer = torch.optim.Adam(dense.parameters())
    dense(torch.randn(8, 512)).sum().backward()
    optimizer.step()
    state = [t for s in optimizer.state.values() for t in s.values()]
    held = [*dense.parameters(), *(p.grad for p in dense.parameters()), *state]
    counters = 4 * 2  # Adam counts the steps of each weight in a number of its own
    assert memory.dense == sum(t.nbytes for t in held) - counters
    assert memory.sparse == memory.rest["total"] + sum(p["total"] for p in memory.layers.values())
    for parts in memory.layers.values():
        names = ("weight", "gradient", "optimizer", "sets", "plan", "reservoir")
        assert parts["total"] == sum(parts[name] for name in names)  # Top-KAST has no companion
        assert all(parts[name] > 0 for name in names)


def test_the_implicit_reservoir_is_small_and_the_stored_one_is_dense() -> None:
    shares = {}
    for kind in ("stored", "implicit"):
        _, handle = trained(kind)
        memory = handle.memory()
        shares[kind] = memory.share
        for parts in memory.layers.values():
            elements = parts["dense"] / 16
            assert (parts["reservoir"] >= 5 * elements) == (kind == "stored")
    assert shares["implicit"] < 0.37 < 0.6 < shares["stored"]


def test_before_any_step_there_are_values_and_sets_only() -> None:
    model = nn.Sequential(nn.Linear(64, 64))
    parts = topkast.sparsify(model, topkast.TopKAST(0.9, 0.8)).memory().layers["0"]
    assert parts["gradient"] == parts["optimizer"] == parts["plan"] == 0
    assert parts["dense"] == 4 * 64 * 64


def test_what_a_method_keeps_beside_a_weight_is_counted() -> None:
    """SNFS has the momentum of every element, SET one number, DEEP R a sign for each of B."""
    sizes = {}
    for method in (topkast.SNFS(0.9, t_end=10), topkast.SET(0.9), topkast.DeepR(0.9), topkast.Static(0.9)):
        parts = topkast.sparsify(nn.Sequential(nn.Linear(40, 50)), method).memory().layers["0"]
        sizes[type(method).__name__] = parts["companion"]
    assert sizes == {"SNFS": 4 * 2000, "SET": 4, "DeepR": 200, "Static": 0}


def test_it_prints_as_a_table() -> None:
    _, handle = trained("implicit")
    lines = str(handle.memory()).splitlines()
    assert lines[0].split() == [
        "layer", "weight", "gradient", "optimizer", "sets", "plan", "reservoir", "companion",
        "total", "dense", "share",
    ]  # fmt: skip
    assert lines[-1].startswith("all")
    assert lines[-1].endswith("%")


def test_bytes_of_a_dense_layer() -> None:
    layer = nn.Linear(20, 10, bias=False)
    optimizer = torch.optim.Adam(layer.parameters())
    layer(torch.ones(1, 20)).sum().backward()
    optimizer.step()
    parts = dense_bytes(layer.weight, optimizer)
    # Adam: two moments and a step counter.
    assert parts == {"weight": 800, "gradient": 800, "optimizer": 1604, "total": 3204}


def test_bytes_of_a_sparse_layer_are_those_of_its_parts() -> None:
    model = nn.Sequential(nn.Linear(20, 10, bias=False))
    handle = sparsify(model, TopKAST(0.9, 0.8), engine="masked")
    optimizer = handle.attach(torch.optim.Adam(model.parameters()))
    model(torch.ones(1, 20)).sum().backward()
    optimizer.step()
    (weight,) = handle.weights.values()
    parts = sparse_bytes(weight, optimizer)
    assert parts["weight"] == parts["gradient"] == 4 * 40  # |B| float32
    assert parts["optimizer"] == 2 * 4 * 40 + 4
    # Positions in int32, a flag each; dims (2), step, key and three counts in int64; 64 choices of `auto`;
    # a bit each for A at the last exchange.
    assert parts["sets"] == 4 * 40 + 40 + 8 * (2 + 1 + 1 + 3) + 64 + 1 + 5
    assert parts["reservoir"] == 200 * 4 + 200  # θ and one byte of history, dense
    assert (
        parts["plan"] == plan_bytes(weight.plan) == 0
    )  # this engine derives what it needs and keeps nothing
    assert parts["total"] == sum(size for part, size in parts.items() if part != "total")


def test_a_plan_counts_what_it_keeps_and_what_was_derived_from_it() -> None:
    class Compiled:
        num_bytes = 1000

    plan = Plan((4, 4), torch.tensor([0, 5, 10]), torch.tensor([True, False, True]))
    assert plan_bytes(plan) == 0  # the sets are the weight's
    assert plan.updated_positions.numel() + plan.active_slots.numel() == 5
    assert plan_bytes(plan) == 0  # derived, and not kept
    assert plan.forward_rows.col.numel() == 2
    with_rows = 5 * 4 + 2 * 4 + 2 * 8  # row starts, columns, slots
    assert plan_bytes(plan) == with_rows
    plan.derived["native, 1 groups"] = Compiled()
    assert plan_bytes(plan) == with_rows + 1000


@pytest.mark.parametrize(
    ("forward", "backward", "share"),
    [(0.8, 0.5, 0.86), (0.9, 0.8, 0.349), (0.95, 0.9, 0.179), (0.98, 0.95, 0.09)],
)
def test_a_layer_in_training_takes_little_beside_what_is_trained(
    forward: float, backward: float, share: float
) -> None:
    """Of the 16 bytes per element of a dense layer with Adam; B's own share of them is 50, 20, 10 and 5 %."""
    model = nn.Sequential(nn.Linear(1024, 1024, bias=False))
    handle = sparsify(model, TopKAST(forward, backward), engine="native")
    optimizer = handle.attach(torch.optim.Adam(model.parameters()))
    model(torch.randn(8, 1024)).square().mean().backward()
    optimizer.step()
    (weight,) = handle.weights.values()
    model(torch.randn(8, 1024)).square().mean().backward()  # the Plan after a refresh
    parts = sparse_bytes(weight, optimizer)
    assert parts["plan"] > 0
    assert parts["total"] - parts["reservoir"] <= share * 16 * 1024 * 1024
