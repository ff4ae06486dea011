"""An exchange: moving a weight from its old sets to new ones, with everything that is kept by slot.

The choice of the new sets belongs to a method. Here they are made true: leavers go back to the reservoir,
entrants are fetched, `values`, its gradient and the optimizer state are permuted in place. (A refresh, which
chooses A within B, moves nothing: `SparseWeight.flip`.)
"""

from __future__ import annotations

import torch
from torch import Tensor

from topkast.core.select import gather, match
from topkast.core.sets import Sets
from topkast.core.slots import SlotMap
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


@torch.no_grad()
def move(weight: SparseWeight, sets: Sets, *, explored: bool) -> SlotMap:
    """Makes `sets` the sets of `weight`.

    Args:
        weight: Changed in place: values, their gradient, positions, reservoir, and what the method keeps
            beside it.
        sets: The new sets. If they have other sizes, `values` is resized, and its gradient dropped.
        explored: Whether all of the old B was in the backward set up to now, or A alone.

    Returns:
        How slots moved, for whatever else is kept by slot.
    """
    old = weight.indices.long()
    if torch.equal(old, sets.indices):
        return _change_a(weight, sets.active, explored=explored)
    source, entering, leaving = match(old, sets.indices)
    left = old[leaving]
    del old  # as long as all of B: of a large weight every such list counts
    was_active = gather(weight.active, source).index_fill_(0, entering, False)
    num_left = int(torch.count_nonzero(weight.active[leaving]))
    weight.changed.fill_(int(torch.count_nonzero(sets.active ^ was_active)) + num_left)
    noted = weight.noted_active()
    was_noted = (
        was_active if noted is weight.active else gather(noted, source).index_fill_(0, entering, False)
    )
    entering_a = torch.nonzero(sets.active & ~was_noted).flatten()
    left_a = torch.cat([sets.indices[was_noted & ~sets.active], left[noted[leaving]]])
    del noted
    weight.forget_plan()

    before = weight.values.numel()
    entrants = weight.reservoir.exchange(left, weight.values.detach()[leaving], sets.indices[entering])
    values = gather(weight.values.detach(), source)
    values[entering] = entrants if sets.fresh is None else sets.fresh.to(values)[entering]
    weight.take(values, sets)
    weight.forget_bound()
    weight.exchanged.fill_(entering.numel())
    weight.reservoir.record(sets.indices[entering], sets.indices[entering_a], left_a)

    slots = SlotMap(source, _reset_slots(weight, entering, was_active, explored=explored), before)
    if weight.values.grad is not None:
        slots.carry_(weight.values.grad)
    if weight.companion is not None:
        weight.companion.carry(slots)
    return slots


def _change_a(weight: SparseWeight, active: Tensor, *, explored: bool) -> SlotMap:
    """The same with B as it was, such as all there is: no value has to move."""
    was_active, was_noted = weight.active.clone(), weight.noted_active().clone()
    changed = int(torch.count_nonzero(active ^ was_active))
    weight.changed.fill_(changed)
    if changed:
        weight.forget_plan()
    if changed or weight.is_noted:
        weight.take(weight.values.detach(), Sets(weight.indices, active))
        nothing = weight.indices.new_empty(0).long()
        moved = (active & ~was_noted, was_noted & ~active)
        weight.reservoir.record(nothing, *(weight.indices[flags].long() for flags in moved))
    num_slots = weight.values.numel()
    nowhere = torch.empty(0, dtype=torch.int64, device=weight.device)
    reset = _reset_slots(weight, nowhere, was_active, explored=explored)
    slots = SlotMap(torch.arange(num_slots, device=weight.device), reset, num_slots, moves=False)
    if weight.values.grad is not None:
        slots.carry_(weight.values.grad)
    if weight.companion is not None:
        weight.companion.carry(slots)
    return slots


def _reset_slots(weight: SparseWeight, entering: Tensor, was_active: Tensor, *, explored: bool) -> Tensor:
    """New slots whose element was not, or is not, in the backward set."""
    if explored and weight.explores:
        return entering
    stays = weight.updated() & (was_active if not explored else torch.ones_like(was_active))
    stays[entering] = False
    return torch.nonzero(~stays).flatten()
