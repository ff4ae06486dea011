"""A snapshot: everything a run needs to go on bit for bit, as plain data."""

from __future__ import annotations

import random
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from topkast.convert.attach import fits_sets
from topkast.store.likeness import check_like

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
        check_like(part, saved["state"])
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
