"""Checking a state before it is loaded: from a file, another model or another machine.

A bad state must change nothing, so all of it is looked at first. `check_states` is installed as a hook on
the sparsified model and on each sparse layer, where it runs before torch has loaded the first tensor.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from topkast.kernels.auto import NAMES, NUM_SIZES
from topkast.kernels.positions import check_positions

if TYPE_CHECKING:
    from topkast.core.weight import SparseWeight

# The state of a weight, as its Parameter and buffers are named.
STATE = ("values", "indices", "active", "dims", "step", "changed", "key", "choices")
_SPARSITY_HINT = "sparsify with the sparsity the state was saved with"


def check_states(model: nn.Module, state_dict: Mapping[str, Any], prefix: str, *_unused: Any) -> None:
    """A `load_state_dict` pre-hook: checks the state of every sparse weight in it."""
    from topkast.core.weight import SparseWeight

    for path, module in model.named_modules(remove_duplicate=False):
        if isinstance(module, SparseWeight):
            check_state(module, state_dict, f"{prefix}{path}.")


def check_state(weight: SparseWeight, state_dict: Mapping[str, Any], prefix: str) -> None:
    """Raises unless `state_dict` holds, under `prefix`, a state that `weight` can take.

    Raises:
        ValueError: Another shape or sparsity, or positions that break a rule; the layer is named.
    """
    where = f"cannot load the state of layer {weight.name!r} ({prefix}*)"
    found = {name: state_dict[prefix + name] for name in STATE if prefix + name in state_dict}
    if not found:
        if prefix.removesuffix(".") in state_dict:
            raise ValueError(f"{where}: the state holds a dense weight; load it before sparsify")
        return  # torch reports missing keys itself, or allows them with strict=False
    missing = [name for name in STATE if name not in found]
    if missing:
        raise ValueError(f"{where}: {', '.join(missing)} missing; a state is loaded whole")
    _check_shapes(weight, found, where)
    problem = check_positions(found["indices"], found["active"], weight.numel())
    if problem is not None:
        raise ValueError(f"{where}: {problem}")
    num_active = int(found["active"].sum())
    if weight.is_resizable:
        if num_active < 1:
            raise ValueError(f"{where}: |A| must be at least 1, got 0")
    elif num_active != weight.counts.forward:
        raise ValueError(f"{where}: |A| must be {weight.counts.forward}, got {num_active}; {_SPARSITY_HINT}")
    if int(found["step"]) < 0:
        raise ValueError(f"{where}: step must not be negative, got {int(found['step'])}")
    _check_companion(weight, state_dict, prefix, where, found["values"].numel())
    _check_reservoir(weight, state_dict, prefix, where)  # last: it relies on sound positions of B


def _check_shapes(weight: SparseWeight, found: Mapping[str, Tensor], where: str) -> None:
    shape = tuple(found["dims"].flatten().tolist())
    if shape != tuple(weight.shape):
        raise ValueError(f"{where}: the dense weight's shape must be {tuple(weight.shape)}, got {shape}")
    length = tuple(found["values"].shape)
    if weight.is_resizable:
        if len(length) != 1 or not 1 <= length[0] <= weight.numel():
            raise ValueError(
                f"{where}: |B| must be between 1 and {weight.numel()}, got values of shape {length}"
            )
    elif length != (weight.counts.backward,):
        raise ValueError(
            f"{where}: |B| must be {weight.counts.backward}, got values of shape {length}; {_SPARSITY_HINT}"
        )
    if tuple(found["indices"].shape) != length:
        raise ValueError(
            f"{where}: indices must have one entry per value ({length[0]}), "
            f"got {tuple(found['indices'].shape)}"
        )
    for name in ("step", "changed", "key"):
        if found[name].ndim != 0 or found[name].dtype != torch.int64:
            raise ValueError(f"{where}: {name} must be one int64 number")
    _check_choices(found["choices"], where)


def _check_choices(choices: Tensor, where: str) -> None:
    if tuple(choices.shape) != (NUM_SIZES,) or choices.dtype != torch.int8:
        raise ValueError(
            f"{where}: choices must be {NUM_SIZES} int8 numbers, got {tuple(choices.shape)} {choices.dtype}"
        )
    low, high = int(choices.min()), int(choices.max())
    if low < 0 or high >= len(NAMES):
        raise ValueError(
            f"{where}: choices must name engines, 0 to {len(NAMES) - 1}, got {low if low < 0 else high}"
        )


def _check_companion(
    weight: SparseWeight, state_dict: Mapping[str, Any], prefix: str, where: str, num_slots: int
) -> None:
    """What the method keeps beside the weight must be there, as long as it should be, and finite."""
    if weight.companion is None:
        return
    for name, mine in weight.companion.state_dict().items():
        key = f"{prefix}companion.{name}"
        if key not in state_dict:
            raise ValueError(f"{where}: {key} missing; sparsify with the method the state was saved with")
        shape = (num_slots,) if name in weight.companion.by_slot else tuple(mine.shape)
        theirs = state_dict[key]
        if tuple(theirs.shape) != shape:
            raise ValueError(f"{where}: companion.{name} must have shape {shape}, got {tuple(theirs.shape)}")
        if not torch.isfinite(theirs).all():
            raise ValueError(f"{where}: companion.{name} has numbers that are not finite")


def _check_reservoir(weight: SparseWeight, state_dict: Mapping[str, Any], prefix: str, where: str) -> None:
    found: dict[str, Tensor] = {}
    for name, _ in weight.reservoir.named_buffers():
        key = f"{prefix}reservoir.{name}"
        if key not in state_dict:
            raise ValueError(f"{where}: {key} missing; sparsify with the reservoir the state was saved with")
        found[name] = state_dict[key]
    problem = weight.reservoir.problem(found, state_dict[prefix + "indices"])
    if problem is not None:
        raise ValueError(f"{where}: {problem} (dense weight: {tuple(weight.shape)})")
