"""`Companion`: what a method keeps beside a weight. It is part of the weight's state."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import Tensor, nn

from topkast.core.slots import SlotMap


class Companion(nn.Module):
    """A base that keeps nothing.

    Subclasses register buffers and parameters. Those kept by slot, one entry per element of B, are named in
    `by_slot` and follow their elements.
    """

    by_slot: tuple[str, ...] = ()

    def used(self, values: Tensor) -> Tensor:
        """What the products use in place of `values`; differentiable."""
        return values

    def carry(self, slots: SlotMap) -> None:
        """Moves what is kept by slot."""
        for name, tensor in self._slotted():
            setattr(self, name, slots.moved(tensor))

    def fit(self, num_slots: int) -> None:
        """Makes what is kept by slot as long as a state that is about to be loaded."""
        for name, tensor in self._slotted():
            if tensor.numel() != num_slots:
                setattr(self, name, tensor.new_zeros(num_slots))

    def _slotted(self) -> Iterator[tuple[str, Any]]:
        for name in self.by_slot:
            yield name, getattr(self, name)
