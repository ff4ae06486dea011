"""What is kept by slot, and how it moves: `SlotMap`, what a method keeps beside a weight, living copies."""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy
import torch
from torch import Tensor, nn

from topkast.core.select import gather

_INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


@dataclass(frozen=True)
class SlotMap:
    """Where each new slot's content comes from.

    Attributes:
        source: For each new slot the old slot of the same element, or -1 for elements that were not in B. Of
            any integer dtype.
        before: How many slots there were.
        moves: Whether any slot has another element than before.
        reset: More slots whose optimizer state starts anew, because their element was not in the backward set
            before, or is not in it now. While exploring there are none: the backward set is all of B.
    """

    source: Tensor
    before: int
    moves: bool = True
    reset: Tensor | None = None

    @property
    def resizes(self) -> bool:
        return self.source.numel() != self.before

    def moved(self, tensor: Tensor, initial: float | Tensor = 0.0) -> Tensor:
        """A tensor kept by slot, after the move; slots that start anew get `initial`."""
        resets = self.reset is not None and self.reset.numel() > 0
        if not self.moves and not resets:
            return tensor
        if not isinstance(initial, Tensor):
            moved = gather(tensor, self.source, initial)
        else:
            moved = torch.where(self.source >= 0, gather(tensor, self.source), initial)
        if self.reset is not None and resets:
            moved[self.reset] = initial[self.reset] if isinstance(initial, Tensor) else initial
        return moved

    def carry_(self, tensor: Tensor, initial: float | Tensor = 0.0) -> None:
        """The same in place, for a tensor that keeps its length."""
        moved = self.moved(tensor, initial)
        if moved is not tensor:
            tensor.copy_(moved)


def checksum(tensor: Tensor) -> int:
    """A number by which one sees that a tensor was written to, also behind its version counter's back."""
    if tensor.is_meta:
        return 0
    bits = tensor.detach().contiguous().view(_INTEGERS[tensor.element_size()])
    return int(bits.sum(dtype=torch.int64))


def pack(flags: Tensor) -> Tensor:
    """A bit for each flag, eight to a byte."""
    return torch.from_numpy(numpy.packbits(flags.cpu().numpy())).to(flags.device)


def unpack(bits: Tensor, like: Tensor) -> Tensor:
    """The inverse of `pack`, for as many flags as `like` has."""
    flags = numpy.unpackbits(bits.cpu().numpy(), count=like.numel())
    return torch.from_numpy(flags).to(like.device).bool()


def nothing_noted(indices: Tensor) -> Tensor:
    """A byte that says so, and room for a bit for each of B. (Files take empty tensors for shared ones.)"""
    return torch.zeros(1 + -(-indices.numel() // 8), dtype=torch.uint8, device=indices.device)


# ---- another length ------------------------------------------------------------------------------------


@torch.no_grad()
def resize_(parameter: nn.Parameter, data: Tensor) -> None:
    """Makes `data`, of another length, the content of `parameter`. Its gradient is dropped.

    The object stays the same, so that optimizers and lists of parameters stay right. What must go is the node
    that collects its gradient in autograd: it remembers the old length, and lives as long as any graph it is
    part of (a loss that is still in a variable). torch forgets it when the dtype changes, hence the detour.
    """
    other = torch.float32 if data.dtype == torch.float64 else torch.float64
    parameter.grad = None
    parameter.data = torch.empty(0, dtype=other, device=data.device)
    parameter.data = data


# ---- what a method keeps beside a weight ---------------------------------------------------------------


class Companion(nn.Module):
    """A base that keeps nothing.

    Subclasses register buffers and parameters. Those kept by slot, one entry per element of B, are named in
    `by_slot` and follow their elements. What is learned by slot has no optimizer state that would follow: its
    elements do not move until it is settled.

    Attributes:
        by_slot: Names of what is kept by slot.
        cuts: Whether it makes elements of A zero in evaluation.
    """

    by_slot: tuple[str, ...] = ()
    cuts: bool = False

    def used(self, values: Tensor) -> Tensor:
        """What the products use in place of `values`; differentiable."""
        return values

    def evaluated(self, values: Tensor) -> Tensor:
        """What they use in evaluation mode, whatever the mode is: what is exported."""
        return self.used(values)

    def complexity(self, values: Tensor) -> Tensor | None:
        """A regulariser of its own, in place of the exploration penalty; differentiable."""
        return None

    def settle(self) -> None:
        """Forgets what it makes of the values, because these are that by now."""

    def learned(self) -> Iterator[nn.Parameter]:
        """What is learned for every element of B. Only training needs it."""
        for _, tensor in self._slotted():
            if isinstance(tensor, nn.Parameter):
                yield tensor

    def carry(self, slots: SlotMap) -> None:
        """Moves what is kept by slot."""
        for name, tensor in self._slotted():
            if tensor.ndim:  # a single number is left of what was settled
                self._replace(name, tensor, slots.moved(tensor))

    def fit(self, state: Mapping[str, Any], prefix: str) -> None:
        """Makes what is kept by slot as long as in a state that is about to be loaded."""
        for name, tensor in self._slotted():
            theirs = state.get(prefix + name)
            if theirs is not None and theirs.shape != tensor.shape:
                self._replace(name, tensor, tensor.new_zeros(theirs.shape))

    def _slotted(self) -> Iterator[tuple[str, Any]]:
        for name in self.by_slot:
            yield name, getattr(self, name)

    def _replace(self, name: str, old: Tensor, new: Tensor) -> None:
        if not isinstance(old, nn.Parameter):
            setattr(self, name, new)
        elif new is not old:
            resize_(old, new.detach())


# ---- copies of a weight, some of which may be averages -------------------------------------------------


class Copies:
    """The copies of one weight, and what its own values were when it was copied from another."""

    def __init__(self, weight: Any) -> None:
        self._weight = weakref.ref(weight)
        self._twins: weakref.WeakSet[Any] = weakref.WeakSet()
        self._content: int | None = None

    def add(self, twin: Any) -> None:
        """Notes a copy that was just made."""
        self._twins.add(twin)
        twin.copies._content = checksum(twin.values)

    def settle(self) -> None:
        """Marks the present values as the weight's own: what was written so far was not an average."""
        self._content = None

    def was_written(self) -> bool:
        """Whether the weight is a copy whose values are others by now."""
        weight = self._weight()
        return self._content is not None and weight is not None and checksum(weight.values) != self._content

    def mark(self) -> None:
        """Takes the present values, cast or loaded, for those that were copied."""
        weight = self._weight()
        if self._content is not None and weight is not None:
            self._content = checksum(weight.values)

    def averages(self) -> list[Any]:
        """Living copies that were written to."""
        return [twin for twin in self._twins if twin.copies.was_written()]
