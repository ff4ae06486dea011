"""DEEP R: Deep Rewiring (Bellec, Kappel, Maass and Legenstein, ICLR 2018)."""

from __future__ import annotations

import math
from dataclasses import KW_ONLY, dataclass

import torch
from torch import Tensor

from topkast.core.moment import Moment
from topkast.core.schedule import check_steps
from topkast.core.select import derive_key, generator_for, random_outside, random_subset
from topkast.core.sets import Sets
from topkast.core.slots import Companion
from topkast.core.weight import SparseWeight
from topkast.methods.base import OneSparsity


class Signs(Companion):
    """The sign that each connection has for as long as it lives."""

    by_slot = ("sign",)
    sign: Tensor

    def __init__(self, values: Tensor) -> None:
        super().__init__()
        self.register_buffer("sign", torch.where(values < 0, -1.0, 1.0).to(torch.int8))


@dataclass(frozen=True)
class DeepR(OneSparsity):
    """A connection keeps its sign; one whose weight would change it dies, and a random dormant one is born.

    It starts at zero, with a random sign. Besides the gradient, weights feel an L1 pull and a random walk:

        Δθ = -η·∂L/∂θ - η·α·sign(θ) + √(2·η·T)·ν

    Attributes:
        forward_sparsity: 1 - D.
        l1: α.
        temperature: T; None is the paper's η·α²/18.
        update_every: The paper's 1.
    """

    _: KW_ONLY
    l1: float = 1e-4
    temperature: float | None = None
    update_every: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        check_steps("`update_every`", self.update_every, at_least=1)
        for name, value in (("`l1`", self.l1), ("`temperature`", self.temperature)):
            if value is not None and not 0 <= value < float("inf"):
                raise ValueError(f"{name} must be at least 0 and finite, got {value!r}")

    @property
    def fetches(self) -> bool:
        return False

    def is_due(self, step: int) -> bool:
        return step % self.update_every == 0

    @property
    def companion_type(self) -> type[Companion]:
        return Signs

    def companion(self, moment: Moment, sets: Sets, dtype: torch.dtype) -> Companion:
        return Signs(moment.theta.at(sets.indices))

    def choose(self, moment: Moment) -> Sets:
        sets = moment.sets
        if sets is None:
            return Sets.of(random_subset(moment.numel, moment.counts.forward, moment.generator))
        assert isinstance(moment.companion, Signs)
        positions = sets.indices
        kept = positions[moment.theta.at(positions) * moment.companion.sign >= 0]
        count = positions.numel() - kept.numel()
        # Dormant means not connected before: what has just died starts again only where nothing else is left.
        taken = positions if moment.numel - positions.numel() >= count else kept
        born = random_outside(moment.numel, count, taken, moment.generator).to(kept)
        return Sets.of(torch.cat([kept, born]).sort().values)

    @torch.no_grad()
    def after_step(self, weight: SparseWeight, lr: float) -> None:
        assert isinstance(weight.companion, Signs)
        sign = weight.companion.sign
        # Newly born connections carry the sign 0 up to here: their first step decides nothing, chance does.
        generator = generator_for(derive_key(int(weight.key), "walk"), weight.steps)
        newborn = sign == 0
        drawn = 2 * torch.randint(2, sign.shape, generator=generator).to(sign) - 1
        sign.copy_(torch.where(newborn, drawn, sign))
        temperature = lr * self.l1**2 / 18 if self.temperature is None else self.temperature
        noise = torch.randn(sign.shape, generator=generator).to(weight.values)
        weight.values.add_(math.sqrt(2 * lr * temperature) * noise - lr * self.l1 * sign)
