"""What is made of an optimizer's step on the values: how far exploration goes, what decays beside it."""

from __future__ import annotations

import torch
from torch import Tensor

from topkast.core.select import by_flag
from topkast.core.weight import SparseWeight
from topkast.kernels import passes


@torch.no_grad()
def shorten_step_(weight: SparseWeight, before: Tensor, factor: float) -> None:
    """Scales the step that was just taken on B∖A; A keeps its own.

        θ ← θ_before + factor·(θ - θ_before)   on B∖A

    With a factor of 0 what is outside A keeps its value to the last bit, whatever momentum or decay the
    optimizer has.

    Args:
        weight: After the step.
        before: Its values before, which are overwritten.
        factor: At least 0.
    """
    after, active = weight.values.detach(), weight.active
    if factor == 0:  # not 0·(θ - θ_before), which is NaN where a step was infinite
        weight.values.copy_(torch.where(active, after, before))
    elif _is_native(after, active) and before.is_contiguous():
        passes.shorten_step_(after, before, active, factor)
        _note_change(weight.values)
    else:
        weight.values.copy_(torch.where(active, after, before + factor * (after - before)))


@torch.no_grad()
def decay_(weight: SparseWeight, on_a: float, outside: float) -> None:
    """Takes a share off every value, never past zero.

    θ ← θ - on_a·θ   on A,       θ ← θ - outside·θ   on B∖A
    """
    inside, beyond = (max(0.0, 1.0 - share) for share in (on_a, outside))
    values, active = weight.values.detach(), weight.active
    if _is_native(values, active):
        passes.decay_(values, active, inside, beyond)
        _note_change(weight.values)
    else:
        weight.values.mul_(by_flag(active, inside, beyond, values))


def _is_native(values: Tensor, active: Tensor) -> bool:
    return passes.can_select(values) and active.is_cpu and values.is_contiguous() and active.is_contiguous()


def _note_change(values: Tensor) -> None:
    """Tells autograd, and whoever keeps something that follows from the values, that they have changed."""
    torch.autograd.graph.increment_version(values)
