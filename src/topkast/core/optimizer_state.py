"""Optimizer state that follows its weight between slots, for any optimizer that works element by element.

The rule: a state tensor shaped like `values` is carried along, a single number is left alone, anything else
cannot be carried and is refused by name.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from topkast.core.slots import SlotMap

# Why these cannot train `values`, whatever shape their state happens to have.
_REFUSED = {
    "Adafactor": "its second moment is factored over the rows and columns of a matrix",
    "LBFGS": "its history is one flat vector over all parameters",
    "Muon": "its update orthogonalises a matrix",
    "Shampoo": "its preconditioners belong to the rows and columns of a matrix",
    "SOAP": "its preconditioners belong to the rows and columns of a matrix",
    "SparseAdam": "it wants gradients of sparse layout",
    "ZeroRedundancyOptimizer": "it moves the state to other ranks",
}
_ADVICE = "use an element-wise optimizer such as SGD, Adam or AdamW for the sparse layers"


def check_kind(optimizer: torch.optim.Optimizer) -> None:
    """Raises TypeError for optimizers known not to work element by element."""
    for cls in type(optimizer).__mro__:
        if cls.__name__ in _REFUSED:
            raise TypeError(
                f"{type(optimizer).__name__} cannot train sparse values: {_REFUSED[cls.__name__]}; {_ADVICE}"
            )


def check_state(optimizer: torch.optim.Optimizer, values: Tensor, layer: str) -> None:
    """Raises TypeError if the state kept for `values` cannot be carried along."""
    for name, entry in optimizer.state.get(values, {}).items():
        if isinstance(entry, Tensor):
            fits = entry.ndim == 0 or entry.shape == values.shape
            what = f"a tensor of shape {tuple(entry.shape)}"
        else:
            fits = entry is None or isinstance(entry, bool | int | float | str)
            what = f"a {type(entry).__name__}"
        if not fits:
            raise TypeError(
                f"{type(optimizer).__name__} keeps {name!r} for layer {layer!r} as {what}; only single "
                f"numbers and tensors shaped like values {tuple(values.shape)} follow a weight; {_ADVICE}"
            )


def carry(optimizer: torch.optim.Optimizer, values: Tensor, slots: SlotMap) -> None:
    """Moves the state of `values` with its slots; elements new to the backward set start afresh."""
    for name, entry in list(_slotted(optimizer, values, slots.before)):
        initial = _initial(optimizer, values, name)
        if slots.resizes:
            optimizer.state[values][name] = slots.moved(entry, initial)
        else:
            slots.carry_(entry, initial)


def _slotted(
    optimizer: torch.optim.Optimizer, values: Tensor, num_slots: int
) -> Iterator[tuple[str, Tensor]]:
    for name, entry in optimizer.state.get(values, {}).items():
        # A weight with one element has state of shape (1,), never (): () is a counter.
        if isinstance(entry, Tensor) and entry.shape == (num_slots,):
            yield name, entry


def _initial(optimizer: torch.optim.Optimizer, values: Tensor, name: str) -> float | Tensor:
    """What the optimizer itself would start `name` at; zero for all but these."""
    group = _group_of(optimizer, values)
    if isinstance(optimizer, torch.optim.Adagrad) and name == "sum":
        return float(group["initial_accumulator_value"])
    if isinstance(optimizer, torch.optim.Rprop) and name == "step_size":
        return float(group["lr"])
    if isinstance(optimizer, torch.optim.ASGD) and name == "ax":
        return values.detach()  # the average of a weight that has not moved
    return 0.0


def _group_of(optimizer: torch.optim.Optimizer, values: Tensor) -> dict[str, Any]:
    return next(g for g in optimizer.param_groups if any(p is values for p in g["params"]))
