"""An exchange: moving a weight from its old sets to new ones, with everything that is kept by slot.

The choice of the new sets belongs to a method. Here they are made true: leavers go back to the reservoir,
entrants are fetched, `values`, its gradient and the optimizer state are permuted in place. (A refresh, which
chooses A within B, moves nothing: `SparseWeight.flip`.)
"""

from __future__ import annotations

import torch
from torch import Tensor

from topkast.core.select import absent, gather, locate, union
from topkast.core.sets import Sets
from topkast.core.slots import SlotMap
from topkast.core.weight import SparseWeight
from topkast.kernels.passes import release_scratch


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
    sets = sets.to(weight.indices.device)  # an implicit reservoir chooses on the CPU
    if sets.settles and weight.companion is not None:
        weight.values.copy_(weight.evaluated())
        weight.companion.settle()
    source = locate(weight.indices, sets.indices)
    num_entering = int(torch.count_nonzero(source < 0))
    if num_entering == 0 and sets.indices.numel() == weight.indices.numel():
        return _change_a(weight, sets.active, explored=explored)
    weight.forget_plan()
    _make_room(weight)
    before = weight.values.numel()
    # Of a large weight every list as long as B counts: they are dropped as soon as they can be, and how slots
    # move is found out again at the end.
    was_active, leaving = _note_history(weight, sets, source)
    del source
    left, left_values = gather(weight.indices, leaving), gather(weight.values, leaving)
    del leaving
    _make_room(weight)
    entrants = weight.reservoir.exchange(left, left_values, _entering(weight, sets))
    del left, left_values
    source = locate(weight.indices, sets.indices)
    is_new = source < 0
    values = gather(weight.values, source)
    values.masked_scatter_(is_new, entrants if sets.fresh is None else sets.fresh.to(values)[is_new])
    del entrants, is_new
    weight.take(values, sets)
    del values
    weight.forget_bound()
    weight.exchanged.fill_(num_entering)
    _make_room(weight)

    slots = SlotMap(source, before, reset=_reset_slots(weight, source, was_active, explored=explored))
    if weight.values.grad is not None:
        slots.carry_(weight.values.grad)
    if weight.companion is not None:
        weight.companion.carry(slots)
    return slots


# Elements of B from which on it is worth the milliseconds to give memory back in the middle of an exchange.
_MANY = 1 << 22


def _make_room(weight: SparseWeight) -> None:
    """Gives back what products keep for the next one, and what the system keeps of freed lists."""
    if weight.values.numel() >= _MANY:
        release_scratch()


def _entering(weight: SparseWeight, sets: Sets) -> Tensor:
    """Positions that enter B."""
    return gather(sets.indices, absent(sets.indices, weight.indices))


def _note_history(weight: SparseWeight, sets: Sets, source: Tensor) -> tuple[Tensor, Tensor]:
    """Notes what enters A and leaves it, before anything moves; `source` says where slots come from.

    Returns:
        By new slot, whether its element was in A; and the old slots whose elements leave B.
    """
    was_active = gather(weight.active, source, False)
    leaving = absent(weight.indices, sets.indices)
    num_left = int(torch.count_nonzero(gather(weight.active, leaving)))
    weight.changed.fill_(int(torch.count_nonzero(sets.active ^ was_active)) + num_left)
    noted = weight.noted_active()
    was_noted = was_active if noted is weight.active else gather(noted, source, False)
    dtype = weight.indices.dtype
    retired = gather(weight.indices, leaving)[gather(noted, leaving)]
    left_a = union(sets.indices[was_noted & ~sets.active].to(dtype), retired)
    weight.reservoir.record(sets.indices[sets.active & ~was_noted], left_a)
    return was_active, leaving


def _change_a(weight: SparseWeight, active: Tensor, *, explored: bool) -> SlotMap:
    """The same with B as it was, such as all there is: no value has to move."""
    was_active, was_noted = weight.active.clone(), weight.noted_active().clone()
    changed = int(torch.count_nonzero(active ^ was_active))
    weight.changed.fill_(changed)
    if changed:
        weight.forget_plan()
    if changed or weight.is_noted:
        weight.take(weight.values.detach(), Sets(weight.indices, active))
        moved = (active & ~was_noted, was_noted & ~active)
        weight.reservoir.record(*(weight.indices[flags].long() for flags in moved))
    num_slots = weight.values.numel()
    source = torch.arange(num_slots, device=weight.device)
    reset = _reset_slots(weight, source, was_active, explored=explored)
    slots = SlotMap(source, num_slots, moves=False, reset=reset)
    if weight.values.grad is not None:
        slots.carry_(weight.values.grad)
    if weight.companion is not None:
        weight.companion.carry(slots)
    return slots


def _reset_slots(
    weight: SparseWeight, source: Tensor, was_active: Tensor, *, explored: bool
) -> Tensor | None:
    """New slots whose element was in B, but was not, or is not, in the backward set; None while exploring."""
    if explored and weight.explores:
        return None
    stays = weight.updated() & (was_active if not explored else torch.ones_like(was_active))
    return torch.nonzero(~stays & (source >= 0)).flatten()
