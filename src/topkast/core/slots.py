"""`SlotMap`: how the slots of a weight moved at a refresh, for whatever is kept by slot."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from topkast.core.select import gather

_INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


@dataclass(frozen=True)
class SlotMap:
    """Where each new slot's content comes from.

    Attributes:
        source: For each new slot the old slot of the same element (0 for elements that were not in B).
        reset: New slots whose optimizer state starts anew: those whose element was not in the backward
            set before, or is not in it now. While exploring, the backward set is all of B.
        before: How many slots there were.
        moves: Whether any slot has another element than before.
    """

    source: Tensor
    reset: Tensor
    before: int
    moves: bool = True

    @property
    def resizes(self) -> bool:
        return self.source.numel() != self.before

    def moved(self, tensor: Tensor, initial: float | Tensor = 0.0) -> Tensor:
        """A tensor kept by slot, after the move; reset slots get `initial`."""
        if not self.moves and self.reset.numel() == 0:
            return tensor
        moved = gather(tensor, self.source)
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
