"""Optimizer state that follows its weight between slots, for any optimizer that works element by element.

The rule: a state tensor shaped like `values` is carried along, a single number is left alone, anything else
cannot be carried and is refused by name. What an element starts with that is new to B is found out by
`optimizer_start`, and where it cannot be told, that is refused by name too.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from topkast.core.optimizer_start import Start, TrialFailed, classify, find_starts
from topkast.core.slots import SlotMap

# Why these cannot train `values`, whatever shape their state happens to have. By class, or package and class.
_MATRIX = "its update orthogonalises a matrix"
_PRECONDITIONED = "its preconditioners belong to the rows and columns of a matrix"
_FACTORED = "its second moment is factored over the rows and columns of a matrix"
_TWICE = "it differentiates gradients, which those of sparse layers do not allow"
_WITHIN = "it updates weights within the backward pass, without steps"
_REFUSED = {
    "AdaFactor": _FACTORED,
    "AdaGO": _MATRIX,
    "AdaHessian": _TWICE,
    "AdaLOMO": _WITHIN,
    "AdaMuon": _MATRIX,
    "Adafactor": _FACTORED,
    "DistributedMuon": _MATRIX,
    "Kron": _PRECONDITIONED,
    "LBFGS": "its history is one flat vector over all parameters",
    "LOMO": _WITHIN,
    "Muon": _MATRIX,
    "MuonClip": _MATRIX,
    "NorMuon": _MATRIX,
    "SOAP": _PRECONDITIONED,
    "ScalableShampoo": _PRECONDITIONED,
    "Shampoo": _PRECONDITIONED,
    "SophiaH": _TWICE,
    "SparseAdam": "it wants gradients of sparse layout",
    "SpectralSphere": _MATRIX,
    "ZeroRedundancyOptimizer": "it moves the state to other ranks",
    "pytorch_optimizer.ASGD": "its rate comes from how norms change from step to step, which a refresh does",
}
_ADVICE = "use an element-wise optimizer such as SGD, Adam or AdamW for the sparse layers"
# How deep attributes of an optimizer are searched for tensors by slot, and in how many of them.
_DEPTH, _MOST_ENTRIES = 5, 20_000


class _Entry(NamedTuple):
    """One state tensor: which of the optimizers keeps it, under which name, in which dictionary."""

    place: int
    name: str
    store: dict[str, Any]
    tensor: Tensor


class OptimizerState:
    """What an optimizer, and those that wrap it, keep for the values of sparse weights.

    Args:
        optimizers: The one that holds the values last; before it those that wrap it, such as Lookahead or
            SAM, the outermost first.

    Raises:
        TypeError: One is known not to work element by element.
    """

    def __init__(self, optimizers: Sequence[Any]) -> None:
        self.optimizers = list(optimizers)
        for optimizer in self.optimizers:
            _check_kind(optimizer)
        self._starts: dict[tuple[int, int, str], Start] = {}
        self._seen: dict[tuple[int, int, str], Start] = {}

    @property
    def innermost(self) -> torch.optim.Optimizer:
        """The one that holds the values."""
        return self.optimizers[-1]

    def group_of(self, values: Tensor) -> dict[str, Any]:
        """The parameter group that holds `values`."""
        groups = self.innermost.param_groups
        return next(g for g in groups if any(p is values for p in g["params"]))

    # ---- whether it can be carried ------------------------------------------------------------------

    def check(self, values: Tensor, layer: str) -> None:
        """Raises TypeError if something that is kept for `values` cannot be carried along."""
        for _, optimizer, state in self._stores(values):
            for name, entry in state.items():
                what = _misfit(entry, values)
                if what is not None:
                    raise TypeError(
                        f"{type(optimizer).__name__} keeps {name!r} for layer {layer!r} as {what}; only "
                        "single numbers and tensors shaped like "
                        f"values {tuple(values.shape)} follow a weight; {_ADVICE}"
                    )
        self._check_attributes(values, layer)

    def _check_attributes(self, values: Tensor, layer: str) -> None:
        """Refuses tensors by slot that are kept outside the state, where nobody would move them."""
        own = {id(optimizer) for optimizer in self.optimizers}
        own |= {id(getattr(optimizer, "state", None)) for optimizer in self.optimizers}
        for optimizer in self.optimizers:
            for name, attribute in getattr(optimizer, "__dict__", {}).items():
                if _holds_slots(attribute, values, own):
                    raise TypeError(
                        f"{type(optimizer).__name__} keeps a tensor as long as the values of layer "
                        f"{layer!r} in {name!r}, outside its state, where it cannot follow the weight; "
                        f"{_ADVICE}"
                    )

    # ---- where it starts ----------------------------------------------------------------------------

    def observe(self, values: Tensor) -> None:
        """Notes where state starts that is there before the first step, such as Lookahead's slow weights."""
        for entry in self._slotted(values, values.numel()):
            start = classify(entry.tensor, values.detach())
            if start is not None:
                self._seen.setdefault((id(values), entry.place, entry.name), start)

    def prepare(self, values: Tensor, layer: str) -> None:
        """Makes sure that all of the state of `values` can be given to new elements.

        Raises:
            TypeError: What a tensor starts at cannot be told; it is named.
        """
        missing = self._missing(values)
        if not missing:
            return
        reason = self._try(values, [(e.place, e.name) for e in missing])
        for entry in self._missing(values):
            optimizer = self.optimizers[entry.place]
            raise TypeError(
                f"{type(optimizer).__name__} keeps {entry.name!r} for layer {layer!r}, and what it starts "
                f"at for a weight that is new to B cannot be told{reason}; {_ADVICE}. An optimizer that "
                "makes its state when it is constructed must be attached before its first step and before "
                "a state is loaded into it"
            )

    def _missing(self, values: Tensor) -> list[_Entry]:
        return [
            entry
            for entry in self._slotted(values, values.numel())
            if (id(values), entry.place, entry.name) not in self._starts and not _is_alias(entry, values)
        ]

    def _try(self, values: Tensor, wanted: list[tuple[int, str]]) -> str:
        """Asks the optimizers; says why if they do not answer."""
        reason, last = "", len(self.optimizers) - 1
        for first in (last, 0) if last else (0,):  # wrappers take part only where they keep something
            if not self._missing(values):
                break
            chain = self.optimizers[first:]
            names = [(place - first, name) for place, name in wanted if place >= first]
            try:
                found = find_starts(chain, values, names)
            except TrialFailed as error:
                reason = f" (a trial step of a copy of it failed: {error})"
                continue
            for (place, name), start in found.items():
                self._starts.setdefault((id(values), place + first, name), start)
        for key, start in self._seen.items():
            self._starts.setdefault(key, start)
        return reason

    # ---- moving it ------------------------------------------------------------------------------------

    def carry(self, values: Tensor, slots: SlotMap) -> None:
        """Moves the state of `values` with its slots; elements new to the backward set start afresh."""
        lr = self.group_of(values).get("lr", 0.0)
        for entry in list(self._slotted(values, slots.before)):
            if _is_alias(entry, values):  # SAM's: the values themselves, which have moved
                continue
            start = self._starts[id(values), entry.place, entry.name]
            initial = start.of(values.detach(), lr)
            if slots.resizes:
                entry.store[entry.name] = slots.moved(entry.tensor, initial)
            else:
                slots.carry_(entry.tensor, initial)

    def tensors(self, values: Tensor) -> Iterator[Tensor]:
        """All that is kept for `values` by slot."""
        for entry in self._slotted(values, values.numel()):
            yield entry.tensor

    def _stores(self, values: Tensor) -> Iterator[tuple[int, Any, dict[str, Any]]]:
        """What each optimizer keeps for `values`; wrappers often have the state of the one within."""
        seen: set[int] = set()
        for place, optimizer in reversed(list(enumerate(self.optimizers))):
            state = getattr(optimizer, "state", None)
            if isinstance(state, Mapping) and id(state) not in seen:
                seen.add(id(state))
                yield place, optimizer, state.get(values, {})

    def _slotted(self, values: Tensor, num_slots: int) -> Iterator[_Entry]:
        for place, _, state in self._stores(values):
            for name, entry in state.items():
                # A weight with one element has state of shape (1,), never (): () is a counter.
                if isinstance(entry, Tensor) and entry.shape == (num_slots,):
                    yield _Entry(place, name, state, entry)


def _check_kind(optimizer: Any) -> None:
    for cls in type(optimizer).__mro__:
        package = cls.__module__.partition(".")[0]
        reason = _REFUSED.get(cls.__name__) or _REFUSED.get(f"{package}.{cls.__name__}")
        if reason is not None:
            raise TypeError(f"{type(optimizer).__name__} cannot train sparse values: {reason}; {_ADVICE}")


def _misfit(entry: Any, values: Tensor) -> str | None:
    """What a state entry is, if it can neither stay as it is nor be carried."""
    if not isinstance(entry, Tensor):
        fits = entry is None or isinstance(entry, bool | int | float | str)
        return None if fits else f"a {type(entry).__name__}"
    if type(entry) not in (Tensor, torch.nn.Parameter, type(values.data)):
        return f"a {type(entry).__name__}"  # quantized or sharded: its slots are not its elements
    fits = entry.ndim == 0 or entry.shape == values.shape
    return None if fits else f"a tensor of shape {tuple(entry.shape)}"


def _is_alias(entry: _Entry, values: Tensor) -> bool:
    return entry.tensor.data_ptr() == values.data_ptr() != 0  # wrappers of tensors have no memory to show


def _holds_slots(thing: Any, values: Tensor, own: set[int]) -> bool:
    """Whether there is a tensor as long as `values` somewhere in plain containers."""
    pending, seen = [(thing, 0)], 0
    while pending and seen < _MOST_ENTRIES:
        thing, depth = pending.pop()
        seen += 1
        if id(thing) in own or thing is values:
            continue
        if isinstance(thing, Tensor):
            if thing.shape == values.shape and not isinstance(thing, torch.nn.Parameter):
                return True
        elif depth < _DEPTH:
            if isinstance(thing, Mapping):
                pending += [(entry, depth + 1) for entry in thing.values()]
            elif isinstance(thing, list | tuple):
                pending += [(entry, depth + 1) for entry in thing]
    return False
