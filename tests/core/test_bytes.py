from __future__ import annotations

import pytest
import torch
from torch import nn

from topkast import TopKAST, sparsify
from topkast.core.bytes import dense_bytes, plan_bytes, sparse_bytes
from topkast.kernels.plan import Plan


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
    # Positions in int32, a flag each; dims (2), step, changed and key in int64; 64 choices of `auto`.
    assert parts["sets"] == 4 * 40 + 40 + 8 * (2 + 1 + 1 + 1) + 64
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
