"""A snapshot: everything a run needs to go on bit for bit, as plain data, and whether it fits.

A state may come from anywhere. torch's optimizers and schedules take nearly any state without a word, and
fail at a later step. So their state is compared with that of the freshly built object: the same kinds of
things in the same places.
"""

from __future__ import annotations

import random
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor
from torch.optim.lr_scheduler import LRScheduler

from topkast.convert.attach import fits_sets
from topkast.text import short

_ADVICE = "build the run with the configuration it was saved with"
# What loading a state that does not fit, or was made up, may raise.
_MISFITS = (RuntimeError, KeyError, TypeError, AttributeError, IndexError, ValueError, OverflowError)


class Stateful(Protocol):
    """A model, an optimizer, a learning-rate schedule, a GradScaler: whatever has a state_dict."""

    def state_dict(self) -> Any: ...

    def load_state_dict(self, state_dict: Any, /) -> Any: ...


@dataclass(frozen=True)
class Snapshot:
    """The state of a run after `step` steps.

    Attributes:
        step: Steps taken.
        parts: Name → {"type": class, "state": state_dict, "metadata": versions of the modules}.
        generators: Name → where a generator of the run's own is.
        rng: Where the global generators are.
        kept: Whatever else the run wants kept: data position, best quality, length of the metrics.
    """

    step: int
    parts: dict[str, Any]
    generators: dict[str, Tensor]
    rng: dict[str, Any]
    kept: dict[str, Any]


def take(
    step: int,
    parts: Mapping[str, Stateful],
    *,
    generators: Mapping[str, torch.Generator] | None = None,
    kept: Mapping[str, Any] | None = None,
) -> Snapshot:
    """Takes a snapshot.

    Its tensors are the living ones, not copies, so that it costs no memory: write it before the next step.

    Args:
        step: Steps taken.
        parts: What to save, by name; `restore` loads in the order it is given them.
        generators: Generators that only this run draws from, such as that of its batches.
        kept: Plain data: None, bools, numbers, strings, tensors, and lists, tuples and dicts of them.
    """
    return Snapshot(
        step,
        {name: _state_of(part) for name, part in parts.items()},
        {name: generator.get_state() for name, generator in (generators or {}).items()},
        rng_state(),
        dict(kept or {}),
    )


def restore(
    snapshot: Snapshot,
    parts: Mapping[str, Stateful],
    *,
    generators: Mapping[str, torch.Generator] | None = None,
) -> dict[str, Any]:
    """Puts everything where it was when the snapshot was taken; the global generators last.

    Args:
        snapshot: What to go back to. It stays as it is, and may be restored again.
        parts: Objects built as those of the snapshot were, by the same names.
        generators: Generators, by the same names.

    Returns:
        What was kept.

    Raises:
        ValueError: A part is missing or left over, or its state does not fit. Objects that were loaded before
            that stay so: do not train with them.
    """
    generators = generators or {}
    _check_names("parts", snapshot.parts, parts)
    _check_names("generators", snapshot.generators, generators)
    for name, part in parts.items():
        load_part(snapshot, name, part)
    _check_tags(snapshot, parts)
    try:
        for name, generator in generators.items():
            generator.set_state(snapshot.generators[name].clone())
        set_rng_state(snapshot.rng)
    except _MISFITS as error:
        raise ValueError(
            f"the random number generators of step {snapshot.step} do not fit: {error}"
        ) from error
    return dict(snapshot.kept)


def _state_of(part: Stateful) -> dict[str, Any]:
    state = part.state_dict()
    # A module's state carries the versions of its modules as an attribute.
    return {"type": type(part).__qualname__, "state": state, "metadata": getattr(state, "_metadata", None)}


def load_part(snapshot: Snapshot, name: str, part: Stateful) -> None:
    """Loads one part alone, such as the model for use without training.

    Raises:
        ValueError: There is no such part, or its state does not fit.
    """
    try:
        saved = snapshot.parts[name]
        if not isinstance(saved, dict) or saved.keys() != {"type", "state", "metadata"}:
            raise ValueError("expected its type, state and metadata")
        # An optimizer takes the state of another kind without a word, and fails at its next step.
        if saved["type"] != type(part).__qualname__:
            raise ValueError(f"it is that of a {saved['type']}, got a {type(part).__qualname__}")
        _check_like(part, saved["state"])
        part.load_state_dict(_loadable(part, saved))
    except _MISFITS as error:
        raise ValueError(f"the state of {name!r} does not fit: {error}; {_ADVICE}") from error


def _loadable(part: Stateful, saved: dict[str, Any]) -> Any:
    if not isinstance(part, torch.nn.Module):
        return _copy(saved["state"])  # optimizers keep the very tensors they are given
    if not isinstance(saved["state"], dict) or not all(type(key) is str for key in saved["state"]):
        raise ValueError("the state of a module must be a dict by name")
    _check_versions(saved["metadata"])
    state = OrderedDict(saved["state"])
    state._metadata = saved["metadata"]  # pyright: ignore[reportAttributeAccessIssue]
    return state


def _check_versions(metadata: Any) -> None:
    """Raises unless these are what torch asks, while it loads, for the version of each module."""
    if metadata is None:
        return
    if not isinstance(metadata, dict) or not all(isinstance(entry, dict) for entry in metadata.values()):
        raise ValueError("its metadata must be a dict of dicts")
    for path, entry in metadata.items():
        if not (entry.get("version") is None or type(entry["version"]) is int):
            raise ValueError(f"the version of module {path!r} must be a whole number")


def _check_tags(snapshot: Snapshot, parts: Mapping[str, Stateful]) -> None:
    """The optimizer's state is by slot, so it must be that of the sets that the model has by now."""
    for name, part in parts.items():
        if isinstance(part, torch.optim.Optimizer) and not fits_sets(snapshot.parts[name]["state"], part):
            raise ValueError(
                f"the state of {name!r} does not fit: it was saved with other sets than the model has; "
                f"{_ADVICE}"
            )


def _copy(state: Any) -> Any:
    if isinstance(state, Tensor):
        return state.clone()
    if isinstance(state, dict):
        twin = type(state)()
        twin.update({key: _copy(value) for key, value in state.items()})
        return twin
    if isinstance(state, list | tuple):
        return type(state)(_copy(item) for item in state)
    return state


def _check_names(what: str, saved: Mapping[str, Any], given: Mapping[str, Any]) -> None:
    if saved.keys() != given.keys():
        raise ValueError(
            f"the snapshot has the {what} {sorted(map(str, saved))}, got {sorted(given)}; "
            "give the same names as when it was taken"
        )


# ---- whether a state has the form of what it is loaded into ----------------------------------------------

# Settings that torch's optimizers have had from the start; others came later, and torch fills them in.
_SETTINGS = ("lr", "betas", "eps", "weight_decay", "momentum", "dampening", "nesterov", "amsgrad")
_ADAMS = (torch.optim.Adam, torch.optim.AdamW)
# Optimizers of which all state is a number, or shaped like its parameter.
_ELEMENTWISE = (*_ADAMS, torch.optim.SGD, torch.optim.RMSprop)
# A float32 cannot hold more.
_LARGEST = torch.finfo(torch.float32).max


def _check_like(part: Any, state: Any) -> None:
    """Raises unless `state` has the form of the state of an optimizer or a schedule; others check their own.

    Raises:
        ValueError: Something is missing or of another kind; its path is named.
    """
    if isinstance(part, torch.optim.Optimizer):
        _check_optimizer(part, state)
    elif isinstance(part, LRScheduler):
        _check_kind(state, part.state_dict(), "it")


def _check_kind(theirs: Any, mine: Any, path: str) -> None:
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
        _require_names(theirs, path, [k for k in mine if type(k) is str and not k.startswith("_")])
        for key in mine.keys() & theirs.keys():
            _check_kind(theirs[key], mine[key], f"{path}[{key!r}]")
    else:
        _require(type(theirs) is type(mine), path, f"a {type(mine).__name__}", theirs)
        if isinstance(mine, list | tuple):
            _require(len(theirs) == len(mine), path, f"{len(mine)} long", theirs)
            for index, (a, b) in enumerate(zip(theirs, mine, strict=True)):
                _check_kind(a, b, f"{path}[{index}]")


def _check_optimizer(optimizer: torch.optim.Optimizer, state: Any) -> None:
    _require_names(state, "it", ["state", "param_groups"])
    mine = optimizer.state_dict()["param_groups"]
    theirs = state["param_groups"]
    fits = isinstance(theirs, list) and len(theirs) == len(mine)
    _require(fits, "param_groups", f"a list of {len(mine)}", theirs)
    for index, (group, own) in enumerate(zip(theirs, mine, strict=True)):
        path = f"param_groups[{index}]"
        _require_names(group, path, ["params", *(name for name in _SETTINGS if name in own)])
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
    _check_kind(theirs, mine, path)
    if name in _SETTINGS:
        numbers = theirs if isinstance(theirs, tuple | list) else [theirs]
        _require(all(float(number) >= 0 for number in numbers), path, "at least 0", theirs)
        _require(name != "betas" or all(float(b) < 1 for b in numbers), path, "below 1", theirs)


def _check_entries(
    optimizer: torch.optim.Optimizer, entries: Any, parameter: Tensor, group: dict[str, Any], path: str
) -> None:
    """What an optimizer keeps for one parameter."""
    _require_names(entries, path, [])
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
        _require_names(entries, path, ["step", "exp_avg", "exp_avg_sq", *more])
        for name in ("exp_avg", "exp_avg_sq", *more):
            fits = isinstance(entries[name], Tensor) and entries[name].shape == parameter.shape
            _require(fits, f"{path}[{name!r}]", "a tensor shaped like the parameter", entries[name])


def _require_names(theirs: Any, path: str, needed: list[str]) -> None:
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


# ---- the global generators ----------------------------------------------------------------------------


def rng_state() -> dict[str, Any]:
    """Where the global generators of torch, Python and numpy are now, as plain data."""
    version, words, gauss = random.getstate()
    legacy: Any = np.random.get_state(legacy=False)
    state: dict[str, Any] = {
        "torch": torch.get_rng_state(),
        "python": (version, torch.tensor(words), gauss),
        "numpy": {**legacy, "state": {**legacy["state"], "key": _to_tensor(legacy["state"]["key"])}},
    }
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        state["cuda"] = torch.cuda.get_rng_state_all()
    return state


def set_rng_state(state: dict[str, Any]) -> None:
    """Puts the global generators where they were."""
    version, words, gauss = state["python"]
    if not (gauss is None or type(gauss) is float):  # Python would hand it out as it is
        raise ValueError("the number that Python's generator has ready must be a float")
    random.setstate((version, tuple(words.tolist()), gauss))
    numpy_state = state["numpy"]
    key = numpy_state["state"]["key"].numpy().astype(np.uint32)
    np.random.set_state({**numpy_state, "state": {**numpy_state["state"], "key": key}})
    torch.set_rng_state(state["torch"])
    if "cuda" in state:
        torch.cuda.set_rng_state_all(state["cuda"])


def _to_tensor(words: Any) -> Tensor:
    return torch.from_numpy(words.astype(np.int64))
