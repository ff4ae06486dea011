"""A refresh: moving a weight from its old sets to new ones, with everything that is kept by slot.

The choice of the new sets belongs to a method. Here they are made true: leavers go back to the reservoir,
entrants are fetched, `values`, its gradient and the optimizer state are permuted in place.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from topkast.core.sets import Sets
from topkast.core.weight import SparseWeight


def check_finite(weight: SparseWeight) -> None:
    """Raises if θ on B is not finite: a NaN has no rank, and would stay in A for ever.

    (C was checked when the weight was made, and only finite values are written back to it.)
    """
    values = weight.values.detach()
    if torch.isfinite(values).all():
        return
    bad = torch.nonzero(~torch.isfinite(values)).flatten()
    slot = int(bad[0])
    raise FloatingPointError(
        f"layer {weight.name!r}: {bad.numel()} of {values.numel()} values are not finite at the refresh "
        f"after step {weight.steps} (first: {float(values[slot])} at position "
        f"{int(weight.indices[slot])}); the sets were not changed. Go back to a checkpoint with a smaller "
        "learning rate, or clip the gradient"
    )


@dataclass(frozen=True)
class SlotMap:
    """Where each new slot's content comes from.

    Attributes:
        source: For each new slot the old slot of the same element (0 where `fresh`).
        fresh: New slots whose element was not in B before.
        reset: New slots whose optimizer state starts anew: those whose element was not in the backward
            set before, or is not in it now. While exploring, the backward set is all of B.
    """

    source: Tensor
    fresh: Tensor
    reset: Tensor

    def carry_(self, tensor: Tensor, initial: float | Tensor = 0.0) -> None:
        """Permutes a tensor kept by slot, in place; reset slots get `initial`."""
        moved = tensor.index_select(0, self.source)
        fill = initial if isinstance(initial, Tensor) else moved.new_tensor(initial)
        tensor.copy_(torch.where(self.reset, fill, moved))


@torch.no_grad()
def move(weight: SparseWeight, sets: Sets, *, was_updated: Tensor) -> SlotMap:
    """Makes `sets` the sets of `weight`.

    Args:
        weight: Changed in place: values, their gradient, positions, reservoir.
        sets: The new sets, of the same sizes.
        was_updated: Which old slots were in the backward set.

    Returns:
        How slots moved, for whatever else is kept by slot.
    """
    old = weight.indices.long()
    # Counted before the buffers change; A's size is fixed, so as many elements enter A as leave it.
    stayed_in_a = _num_common(old[weight.active], sets.indices[sets.active])
    source = torch.searchsorted(old, sets.indices).clamp_(max=old.numel() - 1)
    fresh = old.index_select(0, source) != sets.indices
    source = torch.where(fresh, 0, source)
    leaving = torch.ones_like(weight.active)
    leaving[source[~fresh]] = False

    values = weight.values.index_select(0, source)
    values[fresh] = weight.reservoir.exchange(
        old[leaving], weight.values.detach()[leaving], sets.indices[fresh]
    )
    weight.values.copy_(values)
    weight.indices.copy_(sets.indices)
    weight.active.copy_(sets.active)
    weight.changed.fill_(2 * (weight.counts.forward - stayed_in_a))
    weight.reservoir.record(sets.indices, sets.active)

    reset = fresh | ~was_updated.index_select(0, source) | ~weight.updated()
    slots = SlotMap(source, fresh, reset)
    if weight.values.grad is not None:
        slots.carry_(weight.values.grad)
    return slots


def _num_common(first: Tensor, second: Tensor) -> int:
    """How many positions two increasing lists share."""
    if first.numel() == 0 or second.numel() == 0:
        return 0
    place = torch.searchsorted(first, second).clamp_(max=first.numel() - 1)
    return int((first.index_select(0, place) == second).sum())
