"""What is made of an optimizer's step on the values: how far exploration goes, what decays beside it."""

from __future__ import annotations

import torch
from torch import Tensor

from topkast.core.select import by_flag
from topkast.core.weight import SparseWeight


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
    after = weight.values.detach()
    if factor == 0:  # not 0·(θ - θ_before), which is NaN where a step was infinite
        weight.values.copy_(torch.where(weight.active, after, before))
    else:
        weight.values.copy_(before.lerp_(after, by_flag(weight.active, 1.0, factor, before)))


@torch.no_grad()
def decay_(weight: SparseWeight, on_a: float, outside: float) -> None:
    """Takes a share off every value, never past zero.

    θ ← θ - on_a·θ   on A,       θ ← θ - outside·θ   on B∖A
    """
    inside, beyond = (max(0.0, 1.0 - share) for share in (on_a, outside))
    weight.values.mul_(by_flag(weight.active, inside, beyond, weight.values))
