"""Whether a state has the form of what it is to be loaded into: it may come from anywhere.

torch's optimizers and schedules take nearly any state without a word, and fail at a later step. So their
state is compared with that of the freshly built object: the same kinds of things in the same places.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.optim.lr_scheduler import LRScheduler

# Settings that torch's optimizers have had from the start; others came later, and torch fills them in.
_SETTINGS = ("lr", "betas", "eps", "weight_decay", "momentum", "dampening", "nesterov", "amsgrad")
_ADAMS = (torch.optim.Adam, torch.optim.AdamW)
# Optimizers of which all state is a number, or shaped like its parameter.
_ELEMENTWISE = (*_ADAMS, torch.optim.SGD, torch.optim.RMSprop)
# A float32 cannot hold more.
_LARGEST = torch.finfo(torch.float32).max


def check_like(part: Any, state: Any) -> None:
    """Raises unless `state` has the form of the state of an optimizer or a schedule; others check their own.

    Raises:
        ValueError: Something is missing or of another kind; its path is named.
    """
    if isinstance(part, torch.optim.Optimizer):
        _check_optimizer(part, state)
    elif isinstance(part, LRScheduler):
        _check(state, part.state_dict(), "it")


def _check(theirs: Any, mine: Any, path: str) -> None:
    """Compares by kind; where there is nothing yet, anything simple may come."""
    if mine is None:
        _require(
            theirs is None or type(theirs) in (bool, int, float, str), path, "nothing, or simple", theirs
        )
    elif type(mine) in (int, float):
        _check_number(theirs, path, any_float=not -_LARGEST <= mine <= _LARGEST)
    elif isinstance(mine, Tensor):
        fits = isinstance(theirs, Tensor) and (theirs.shape, theirs.dtype) == (mine.shape, mine.dtype)
        _require(fits, path, f"a tensor of {mine.dtype} with shape {tuple(mine.shape)}", theirs)
    elif isinstance(mine, dict):
        _check_names(theirs, path, [k for k in mine if type(k) is str and not k.startswith("_")])
        for key in mine.keys() & theirs.keys():
            _check(theirs[key], mine[key], f"{path}[{key!r}]")
    else:
        _require(type(theirs) is type(mine), path, f"a {type(mine).__name__}", theirs)
        if isinstance(mine, list | tuple):
            _require(len(theirs) == len(mine), path, f"{len(mine)} long", theirs)
            for index, (a, b) in enumerate(zip(theirs, mine, strict=True)):
                _check(a, b, f"{path}[{index}]")


def _check_optimizer(optimizer: torch.optim.Optimizer, state: Any) -> None:
    _check_names(state, "it", ["state", "param_groups"])
    mine = optimizer.state_dict()["param_groups"]
    theirs = state["param_groups"]
    fits = isinstance(theirs, list) and len(theirs) == len(mine)
    _require(fits, "param_groups", f"a list of {len(mine)}", theirs)
    for index, (group, own) in enumerate(zip(theirs, mine, strict=True)):
        path = f"param_groups[{index}]"
        _check_names(group, path, ["params", *(name for name in _SETTINGS if name in own)])
        for name in own.keys() & group.keys():
            _check_setting(group[name], own[name], f"{path}[{name!r}]", name)
    _require(isinstance(state["state"], dict), "state", "a dict", state["state"])
    params = [(p, group) for group in optimizer.param_groups for p in group["params"]]
    for key, entries in state["state"].items():
        _require(type(key) is int and 0 <= key < len(params), "state", "by number of parameter", key)
        _check_entries(optimizer, entries, *params[key], f"state[{key}]")


def _check_setting(theirs: Any, mine: Any, path: str, name: str) -> None:
    if name == "params" or mine is None or isinstance(mine, bool):  # what the optimizer was built with
        is_same = type(theirs) is type(mine) and theirs == mine
        if isinstance(mine, list):
            is_same = is_same and all(type(number) is int for number in theirs)
        _require(is_same, path, f"{mine}", theirs)
        return
    _check(theirs, mine, path)
    if name in _SETTINGS:
        numbers = theirs if isinstance(theirs, tuple | list) else [theirs]
        _require(all(float(number) >= 0 for number in numbers), path, "at least 0", theirs)
        _require(name != "betas" or all(float(b) < 1 for b in numbers), path, "below 1", theirs)


def _check_entries(
    optimizer: torch.optim.Optimizer, entries: Any, parameter: Tensor, group: dict[str, Any], path: str
) -> None:
    """What an optimizer keeps for one parameter."""
    _check_names(entries, path, [])
    if not isinstance(optimizer, _ELEMENTWISE):
        return
    for name, entry in entries.items():
        where = f"{path}[{name!r}]"
        if isinstance(entry, Tensor):
            shape = tuple(parameter.shape)
            fits = entry.ndim == 0 or tuple(entry.shape) == shape
            _require(fits, where, f"one number, or of shape {shape}", tuple(entry.shape))
        elif entry is not None:
            _check_number(entry, where)
        if name == "step":
            _require(entry is not None and 0 <= float(entry) <= _LARGEST, where, "at least 0", entry)
    if entries and isinstance(optimizer, _ADAMS):
        more = ["max_exp_avg_sq"] if group.get("amsgrad") else []
        _check_names(entries, path, ["step", "exp_avg", "exp_avg_sq", *more])
        for name in ("exp_avg", "exp_avg_sq", *more):
            fits = isinstance(entries[name], Tensor) and entries[name].shape == parameter.shape
            _require(fits, f"{path}[{name!r}]", "a tensor shaped like the parameter", entries[name])


def _check_names(theirs: Any, path: str, needed: list[str]) -> None:
    _require(isinstance(theirs, dict), path, "a dict", theirs)
    for name in needed:
        if name not in theirs:
            raise ValueError(f"{path} has no {name!r}")


def _check_number(theirs: Any, path: str, *, any_float: bool = False) -> None:
    is_number = type(theirs) in (int, float) and (any_float or -_LARGEST <= theirs <= _LARGEST)
    _require(is_number, path, "a number that a float32 can hold", theirs)


def _require(holds: bool, path: str, rule: str, theirs: Any) -> None:
    if not holds:
        raise ValueError(f"{path} must be {rule}, got {short(theirs)}")


def short(value: Any) -> str:
    """A value for a message: simple ones as they are, if they are short."""
    if type(value) is int and value.bit_length() > 200:
        return f"a number of {value.bit_length():,} bits"
    text = repr(value) if value is None or type(value) in (bool, int, float, str, tuple) else ""
    return text if text and len(text) <= 60 else f"a {type(value).__name__}"
