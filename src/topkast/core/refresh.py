"""A refresh: moving a weight from its old sets to new ones, with everything that is kept by slot.

The choice of the new sets belongs to a method. Here they are made true: leavers go back to the reservoir,
entrants are fetched, `values`, its gradient and the optimizer state are permuted in place.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from topkast.core.select import match
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
        source: For each new slot the old slot of the same element (0 for elements that were not in B).
        reset: New slots whose optimizer state starts anew: those whose element was not in the backward
            set before, or is not in it now. While exploring, the backward set is all of B.
    """

    source: Tensor
    reset: Tensor

    def carry_(self, tensor: Tensor, initial: float | Tensor = 0.0) -> None:
        """Permutes a tensor kept by slot, in place; reset slots get `initial`."""
        moved = tensor.index_select(0, self.source)
        if isinstance(initial, Tensor):
            moved[self.reset] = initial[self.reset]
        else:
            moved[self.reset] = initial
        tensor.copy_(moved)


@torch.no_grad()
def move(weight: SparseWeight, sets: Sets, *, explored: bool) -> SlotMap:
    """Makes `sets` the sets of `weight`.

    Args:
        weight: Changed in place: values, their gradient, positions, reservoir.
        sets: The new sets, of the same sizes.
        explored: Whether all of the old B was in the backward set up to now, or A alone.

    Returns:
        How slots moved, for whatever else is kept by slot.
    """
    old = weight.indices.long()
    source, entering, leaving = match(old, sets.indices)
    left, left_of_a = old[leaving], old[leaving[weight.active[leaving]]]
    del old  # as long as all of B: of a large weight every such list counts
    was_active = weight.active.index_select(0, source).index_fill_(0, entering, False)
    entering_a = torch.nonzero(sets.active & ~was_active).flatten()
    left_a = torch.cat([sets.indices[was_active & ~sets.active], left_of_a])
    if entering.numel() or entering_a.numel():
        weight.forget_plan()

    entrants = weight.reservoir.exchange(left, weight.values.detach()[leaving], sets.indices[entering])
    values = weight.values.detach().index_select(0, source)
    values[entering] = entrants
    weight.values.copy_(values)
    weight.indices.copy_(sets.indices)
    weight.active.copy_(sets.active)
    # A's size is fixed, so as many elements leave it as enter it.
    weight.changed.fill_(2 * entering_a.numel())
    weight.reservoir.record(sets.indices[entering], sets.indices[entering_a], left_a)

    slots = SlotMap(source, _reset_slots(weight, entering, was_active, explored=explored))
    if weight.values.grad is not None:
        slots.carry_(weight.values.grad)
    return slots


def _reset_slots(weight: SparseWeight, entering: Tensor, was_active: Tensor, *, explored: bool) -> Tensor:
    """New slots whose element was not, or is not, in the backward set."""
    if explored and weight.explores:
        return entering
    stays = weight.updated() & (was_active if not explored else torch.ones_like(was_active))
    stays[entering] = False
    return torch.nonzero(~stays).flatten()
