"""Averages and other copies of a model's values, which are kept by slot: moved along, or noticed.

A slot changes its meaning at a refresh. An average that is not told of it mixes different weights, so copies
that are written to are refused, and other tensors that look like averages of values are reported.
"""

from __future__ import annotations

import gc
import warnings
import weakref
from collections.abc import Iterable, Iterator, Mapping

import torch
from torch import Tensor, nn

from topkast.core.refresh import move
from topkast.core.sets import Sets
from topkast.core.slots import SlotMap, checksum
from topkast.core.weight import SparseWeight
from topkast.nn.base import SparseLayer


class SlotAverageWarning(UserWarning):
    """Tensors seem to average the values of sparse layers, and do not follow them."""


class Followers:
    """The copies of one model's values that move along with them.

    Args:
        weights: Name → sparse weight of the model.
    """

    def __init__(self, weights: Mapping[str, SparseWeight]) -> None:
        self._weights = weights
        self._modules: dict[str, list[SparseWeight]] = {name: [] for name in weights}
        self._tensors: dict[str, list[Tensor]] = {name: [] for name in weights}
        self._strays = _Strays(weights)
        self._num_refreshes = 0

    def add(self, copy: nn.Module | Iterable[Tensor], parameters: list[nn.Parameter]) -> None:
        """See `Handle.follow`; `parameters` are those of the model."""
        if isinstance(copy, nn.Module):
            self._add_module(copy)
        else:
            self._add_tensors(list(copy), parameters)

    def _add_module(self, copy: nn.Module) -> None:
        theirs: dict[int, SparseWeight] = {}
        for weight in [m.weight for m in copy.modules() if isinstance(m, SparseLayer)]:
            theirs.setdefault(id(weight), weight)
        if len(theirs) != len(self._weights):
            raise ValueError(f"the copy has {len(theirs)} sparse weights, the model has {len(self._weights)}")
        pairs = list(zip(self._weights.items(), theirs.values(), strict=True))
        for (name, mine), weight in pairs:
            if weight is mine:
                raise ValueError("this is the model itself, not a copy of it")
            if not torch.equal(weight.indices.to(mine.indices), mine.indices):
                raise ValueError(
                    f"the sets of layer {name!r} differ between the copy and the model; "
                    "copy the model anew and follow it before the next refresh"
                )
        for (name, _), weight in pairs:
            weight.copies.settle()
            self._modules[name].append(weight)

    def _add_tensors(self, tensors: list[Tensor], parameters: list[nn.Parameter]) -> None:
        """One tensor per parameter, as `torch_ema` and others keep them, or per parameter that is trained."""
        trained = [p for p in parameters if p.requires_grad]
        pairs = next(
            (
                list(zip(theirs, tensors, strict=True))
                for theirs in (parameters, trained)
                if [p.shape for p in theirs] == [t.shape for t in tensors]
            ),
            None,
        )
        if pairs is None:
            raise ValueError(
                "the tensors must be one for each of the model's parameters, in their order and with their "
                f"shapes ({len(parameters)} of them), got {len(tensors)}"
            )
        if any(p is t for p, t in pairs):
            raise ValueError("these are the model's own parameters, not copies of them")
        by_parameter = {id(p): t for p, t in pairs}
        for name, weight in self._weights.items():
            if id(weight.values) in by_parameter:
                self._tensors[name].append(by_parameter[id(weight.values)])

    def check(self, name: str) -> None:
        """Raises RuntimeError if a copy of a weight was written to that does not follow it."""
        if self._weights[name].copies.averages():
            raise RuntimeError(
                f"a copy of layer {name!r} has been written to since it was copied, as an AveragedModel or "
                "another average does: it is kept by slot, and this refresh would mix different weights. "
                "Call `handle.follow(copy)` right after making the copy; if the copy is trained on its own, "
                "attach its optimizer to a `topkast.Handle` of it"
            )

    def carry(self, name: str, sets: Sets, slots: SlotMap) -> None:
        """Moves all that follows a weight which has just moved. An entrant's average is its value."""
        for follower in self._modules[name]:
            move(follower, sets.to(follower.device), explored=follower.explores)
        with torch.no_grad():
            for tensor in self._tensors[name]:
                slots.carry_(tensor, self._weights[name].values.detach().to(tensor))

    def flip(self, name: str, slots: Tensor) -> None:
        """Gives a weight's followers its A. Slots mean what they meant: averages by slot stay as they are."""
        for follower in self._modules[name]:
            follower.flip(slots.to(follower.device))

    def look_for_strays(self) -> None:
        """Called before each refresh; looks at every power of four, since it goes through all objects."""
        self._num_refreshes += 1
        if self._num_refreshes.bit_count() == 1 and self._num_refreshes.bit_length() % 2:
            self._strays.look(known=self._known())

    def _known(self) -> Iterator[Tensor]:
        for name, weight in self._weights.items():
            if weight.driver is not None:
                yield from weight.driver.state.tensors(weight.values)
            yield from self._tensors[name]


# A copy or an average differs from the values by less than this share of their norm.
_RESEMBLES = 0.5


class _Strays:
    """Tensors as long as a weight's values that resemble them, and change from one look to the next.

    A list of clones that somebody averages (`torch_ema`, an own loop) is such a thing, and so is the state of
    a wrapper of which only the optimizer within was attached. A snapshot does not change, and is no matter.
    """

    def __init__(self, weights: Mapping[str, SparseWeight]) -> None:
        self._weights = weights
        self._seen: list[tuple[str, weakref.ref[Tensor], int]] = []
        self._has_warned = False

    def look(self, known: Iterable[Tensor]) -> None:
        if self._has_warned:
            return
        skipped = {id(tensor) for tensor in known}
        for name, reference, content in self._seen:
            tensor = reference()
            if tensor is not None and id(tensor) not in skipped and checksum(tensor) != content:
                self._warn(name)
                return
        self._seen = list(self._find(skipped))

    def _find(self, skipped: set[int]) -> Iterator[tuple[str, weakref.ref[Tensor], int]]:
        lengths: dict[int, list[str]] = {}
        for name, weight in self._weights.items():
            lengths.setdefault(weight.values.numel(), []).append(name)
        for tensor in _all_tensors():
            if tensor.ndim != 1 or tensor.numel() not in lengths or id(tensor) in skipped:
                continue
            for name in lengths[tensor.numel()]:
                values = self._weights[name].values.detach()
                is_alike = (tensor.device, tensor.dtype) == (values.device, values.dtype)
                if is_alike and tensor.data_ptr() != values.data_ptr() and _resembles(tensor, values):
                    yield name, weakref.ref(tensor), checksum(tensor)
                    break

    def _warn(self, name: str) -> None:
        self._has_warned = True
        warnings.warn(
            f"a tensor as long as the values of layer {name!r} resembles them and changes during training, "
            "as an average of weights does. It is kept by slot, and slots change their meaning at a refresh: "
            "it mixes different weights. Call `handle.follow(tensors)` with the list it belongs to (such as "
            "torch_ema's `shadow_params`) before the first refresh, or keep the average in a copy of the "
            "model and follow that. To silence this: "
            "warnings.simplefilter('ignore', topkast.SlotAverageWarning)",
            SlotAverageWarning,
            stacklevel=2,
        )


def _all_tensors() -> list[Tensor]:
    # By type and not isinstance: foreign objects may compute, or fail, when asked for their class. Parameters
    # are left out: values and copies of them are known to their weights.
    return [thing for thing in gc.get_objects() if type(thing) is Tensor]


def _resembles(tensor: Tensor, values: Tensor) -> bool:
    return bool((tensor.detach() - values).norm() <= _RESEMBLES * values.norm())
