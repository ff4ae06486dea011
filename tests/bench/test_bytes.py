from __future__ import annotations

import torch
from torch import nn

from topkast import TopKAST, sparsify
from topkast.bench.bytes import dense_bytes, plan_bytes, sparse_bytes
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
    assert parts["plan"] == plan_bytes(weight.plan) > 0
    assert parts["total"] == sum(size for part, size in parts.items() if part != "total")


def test_a_plan_counts_shared_tensors_once_and_what_was_derived_from_it() -> None:
    class Compiled:
        num_bytes = 1000

    plan = Plan((4, 4), torch.tensor([0, 5, 10]), torch.tensor([True, False, True]))
    own = 3 * 8 + 3 + 2 * 8  # positions, flags, slots of A
    assert plan_bytes(plan) == own
    assert plan.updated_positions is plan.positions
    assert plan_bytes(plan) == own
    assert plan.forward_rows.col.numel() == 2
    with_rows = own + 2 * 8 + 5 * 4 + 2 * 4  # positions of A, row starts, columns
    assert plan_bytes(plan) == with_rows
    plan.derived["native, 1 groups"] = Compiled()
    assert plan_bytes(plan) == with_rows + 1000
