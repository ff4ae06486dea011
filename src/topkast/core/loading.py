"""Checking a state before it is loaded: from a file, another model or another machine.

A bad state must change nothing, so all of it is looked at first. `check_states` is installed as a hook on
the sparsified model and on each sparse layer, where it runs before torch has loaded the first tensor. Sparse
weights are looked at whole. Of everything else the shapes are: torch itself notices a wrong one only after
it has loaded what comes before.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.parameter import is_lazy

from topkast.kernels.auto import NAMES, NUM_SIZES
from topkast.kernels.positions import check_positions

if TYPE_CHECKING:
    from topkast.core.weight import SparseWeight

# The state of a weight, as its Parameter and buffers are named.
# What came after version 0.1: states without it load.
LATER = ("exchanged", "early", "noted")
STATE = ("values", "indices", "active", "dims", "step", "changed", "key", "choices")
# Ways to load that copy into what there is of the same shape; a norm only adds a count that was not saved.
_PLAIN_LOADERS = (nn.Module._load_from_state_dict, _NormBase._load_from_state_dict)
_SPARSITY_HINT = "sparsify with the sparsity the state was saved with"
_FINITE_HINT = "load a state from before the numbers went wrong"


def check_states(model: nn.Module, state_dict: Mapping[str, Any], prefix: str, *_unused: Any) -> None:
    """A `load_state_dict` pre-hook: checks every sparse weight, then the shapes of everything else.

    Raises:
        ValueError: A sparse weight cannot take its state; see `check_state`.
        RuntimeError: Something else has another shape. It is torch's own error, raised earlier.
    """
    from topkast.core.weight import SparseWeight

    for path, module in model.named_modules(remove_duplicate=False):
        if isinstance(module, SparseWeight):
            check_state(module, state_dict, f"{prefix}{path}.")
    hooks = list(model._load_state_dict_pre_hooks.values())
    later = hooks[next((i for i, hook in enumerate(hooks) if _is_ours(hook)), 0) :]
    if not _loads_plainly(model, later):
        return
    problems = list(_misfits(model, state_dict, prefix))
    if problems:
        raise RuntimeError(
            f"Error(s) in loading state_dict for {type(model).__name__}:\n\t" + "\n\t".join(problems)
        )


def _misfits(module: nn.Module, state_dict: Mapping[str, Any], prefix: str) -> Iterator[str]:
    """What torch would complain about, later, in the dense parameters and buffers of a module and below."""
    for name, mine in _loaded_by_torch(module):
        if prefix + name not in state_dict:
            continue  # torch reports missing keys itself, or allows them with strict=False
        theirs = state_dict[prefix + name]
        if is_lazy(theirs):
            continue
        if not torch.overrides.is_tensor_like(theirs):
            yield f"{prefix}{name} must be a tensor, got a {type(theirs).__name__}"
        elif theirs.shape != mine.shape and not (mine.ndim == 0 and tuple(theirs.shape) == (1,)):
            yield (
                f"size mismatch for {prefix}{name}: copying a param with shape {theirs.shape} from "
                f"checkpoint, the shape in current model is {mine.shape}."
            )
    for name, child in module._modules.items():
        if child is not None and _loads_plainly(child, list(child._load_state_dict_pre_hooks.values())):
            yield from _misfits(child, state_dict, f"{prefix}{name}.")


def _is_ours(hook: Any) -> bool:
    return getattr(hook, "hook", hook) is check_states


def _loads_plainly(module: nn.Module, hooks: list[Any]) -> bool:
    """Whether it takes what the state holds now, in the same shape. A hook may change the state first."""
    return type(module)._load_from_state_dict in _PLAIN_LOADERS and all(map(_is_ours, hooks))


def _loaded_by_torch(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    yield from ((n, p) for n, p in module._parameters.items() if p is not None and not is_lazy(p))
    for name, buffer in module._buffers.items():
        if buffer is not None and name not in module._non_persistent_buffers_set and not is_lazy(buffer):
            yield name, buffer


def check_state(weight: SparseWeight, state_dict: Mapping[str, Any], prefix: str) -> None:
    """Raises unless `state_dict` holds, under `prefix`, a state that `weight` can take.

    Raises:
        ValueError: Another shape or sparsity, or positions that break a rule; the layer is named.
    """
    where = f"cannot load the state of layer {weight.name!r} ({prefix}*)"
    names = (*STATE, *LATER)
    found = {n: _tensor(state_dict, prefix + n, where) for n in names if prefix + n in state_dict}
    if not any(name in found for name in STATE):
        if prefix.removesuffix(".") in state_dict:
            raise ValueError(f"{where}: the state holds a dense weight; load it before sparsify")
        return  # torch reports missing keys itself, or allows them with strict=False
    missing = [name for name in STATE if name not in found]
    if missing:
        raise ValueError(f"{where}: {', '.join(missing)} missing; a state is loaded whole")
    _check_shapes(weight, found, where)
    if not all_finite(found["values"], weight.dtype):
        raise ValueError(f"{where}: values has numbers that are not finite in {weight.dtype}; {_FINITE_HINT}")
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


def all_finite(numbers: Tensor, dtype: torch.dtype) -> bool:
    """Whether all numbers are finite once they are kept in `dtype`. Makes nothing of their size."""
    if numbers.numel() == 0:
        return True
    if numbers.is_complex():
        return False
    if numbers.element_size() == 1:  # some of these types have no minimum
        numbers = numbers.float()
    ends = torch.stack(torch.aminmax(numbers)).to(dtype)  # NaN if there is one
    return bool(torch.isfinite(ends).all())


def _tensor(state_dict: Mapping[str, Any], key: str, where: str) -> Tensor:
    if not isinstance(state_dict[key], Tensor):
        raise ValueError(f"{where}: {key} must be a tensor, got a {type(state_dict[key]).__name__}")
    return state_dict[key]


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
    for name in ("step", "changed", "key", "exchanged", "early"):
        if name in found and (found[name].ndim != 0 or found[name].dtype != torch.int64):
            raise ValueError(f"{where}: {name} must be one int64 number")
    noted = found.get("noted")
    if noted is not None:
        wanted = (1 + -(-length[0] // 8),)
        if noted.dtype != torch.uint8 or tuple(noted.shape) != wanted:
            raise ValueError(
                f"{where}: noted must have {wanted[0]} bytes, one and a bit for each of B, "
                f"got {tuple(noted.shape)} {noted.dtype}"
            )
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
        is_slotted = name in weight.companion.by_slot
        shape = (num_slots,) if is_slotted else tuple(mine.shape)
        theirs = _tensor(state_dict, key, where)
        is_settled = is_slotted and weight.companion.cuts and weight.is_resizable and theirs.ndim == 0
        if tuple(theirs.shape) != shape and not is_settled:
            raise ValueError(f"{where}: companion.{name} must have shape {shape}, got {tuple(theirs.shape)}")
        if not all_finite(theirs, mine.dtype):
            raise ValueError(
                f"{where}: companion.{name} has numbers that are not finite in {mine.dtype}; {_FINITE_HINT}"
            )


def _check_reservoir(weight: SparseWeight, state_dict: Mapping[str, Any], prefix: str, where: str) -> None:
    found: dict[str, Tensor] = {}
    for name, _ in weight.reservoir.named_buffers():
        key = f"{prefix}reservoir.{name}"
        if key not in state_dict:
            raise ValueError(f"{where}: {key} missing; sparsify with the reservoir the state was saved with")
        found[name] = _tensor(state_dict, key, where)
    problem = weight.reservoir.problem(found, state_dict[prefix + "indices"])
    if problem is not None:
        raise ValueError(f"{where}: {problem} (dense weight: {tuple(weight.shape)})")
