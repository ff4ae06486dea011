"""Bytes of a layer in training, counted on the objects that hold them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor

from topkast.core.weight import SparseWeight
from topkast.kernels.plan import Pattern, Plan


def dense_bytes(weight: Tensor, optimizer: torch.optim.Optimizer | None) -> dict[str, int]:
    """Of a dense weight: by part, and their sum as "total"."""
    return _with_total(
        {
            "weight": weight.nbytes,
            "gradient": _nbytes([weight.grad]),
            "optimizer": _state_bytes(weight, optimizer),
        }
    )


def sparse_bytes(weight: SparseWeight, optimizer: torch.optim.Optimizer | None) -> dict[str, int]:
    """Of a sparse weight: by part, and their sum as "total".

    "sets" are the buffers that say what A and B are; "plan" is what was derived from them for the products;
    "reservoir" is what is known of C; "companion" is what the method keeps beside the weight (its parameters,
    such as a learned threshold, are the model's).
    """
    companion = () if weight.companion is None else weight.companion.buffers()
    return _with_total(
        {
            "weight": weight.values.nbytes,
            "gradient": _nbytes([weight.values.grad]),
            "optimizer": _state_bytes(weight.values, optimizer),
            "sets": _nbytes(weight.buffers(recurse=False)),
            "plan": plan_bytes(weight.plan),
            "reservoir": _nbytes(weight.reservoir.buffers()),
            "companion": _nbytes(companion),
        }
    )


def dense_equivalent(weight: SparseWeight, optimizer: torch.optim.Optimizer | None) -> int:
    """What the same weight would take if it were dense, trained by the same optimizer.

    Whatever is kept per element of B (value, gradient if there is one, moments) is kept per element then.
    """
    state = [] if optimizer is None else list(_tensors_in(optimizer.state.get(weight.values, {}).values()))
    kept = [weight.values, weight.values.grad, *state]
    per_element = [t for t in kept if t is not None and t.numel() == weight.values.numel()]
    return sum(t.element_size() for t in per_element) * weight.numel()


def plan_bytes(plan: Plan) -> int:
    """Of the tensors a Plan holds, each counted once, and of the compiled Plans made from it.

    Not of the sets it looks at: they are the weight's.
    """
    compiled = sum(int(getattr(derived, "num_bytes", 0)) for derived in plan.derived.values())
    sets = {plan.indices.data_ptr(), plan.active.data_ptr()}
    own = [t for t in _tensors_in(vars(plan).values()) if t.untyped_storage().data_ptr() not in sets]
    return compiled + _nbytes(own)


def _tensors_in(values: Iterable[Any]) -> Iterator[Tensor]:
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, Pattern):
            yield from _tensors_in(vars(value).values())


def _state_bytes(parameter: Tensor, optimizer: torch.optim.Optimizer | None) -> int:
    return 0 if optimizer is None else _nbytes(_tensors_in(optimizer.state.get(parameter, {}).values()))


def _nbytes(tensors: Iterable[Tensor | None]) -> int:
    """Bytes of the storages: two tensors that share one count once."""
    storages = {t.untyped_storage().data_ptr(): t.untyped_storage() for t in tensors if t is not None}
    return sum(storage.nbytes() for storage in storages.values())


def _with_total(parts: dict[str, int]) -> dict[str, int]:
    return {**parts, "total": sum(parts.values())}
