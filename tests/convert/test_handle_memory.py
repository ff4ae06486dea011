"""`Handle.memory()`: what is held is counted, and the dense model beside it."""

from __future__ import annotations

import torch
from torch import nn

import topkast


def trained(reservoir: str) -> tuple[nn.Module, topkast.Handle]:
    device = "meta" if reservoir == "implicit" else "cpu"
    with torch.device(device):
        model = nn.Sequential(nn.Linear(512, 256), nn.ReLU(), nn.Linear(256, 512))
    method = topkast.TopKAST(0.9, 0.8, refresh_every=2)
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
