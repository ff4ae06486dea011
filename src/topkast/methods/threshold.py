"""STR: Soft Threshold Weight Reparameterization (Kusupati et al., ICML 2020)."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, field

import torch
from torch import Tensor, nn

from topkast.core.moment import Moment
from topkast.core.schedule import check_steps
from topkast.core.sets import Sets
from topkast.core.slots import Companion
from topkast.methods.base import Method


class SoftThreshold(Companion):
    """A learned threshold σ(s): the products use sign(θ)·max(0, |θ| - σ(s))."""

    def __init__(self, initial: float, dtype: torch.dtype) -> None:
        super().__init__()
        self.s = nn.Parameter(torch.tensor(initial, dtype=dtype))

    def threshold(self) -> Tensor:
        return torch.sigmoid(self.s)

    def used(self, values: Tensor) -> Tensor:
        return values.sign() * torch.relu(values.abs() - self.threshold())


@dataclass(frozen=True)
class STR(Method):
    """Each layer learns its own threshold, and with it its own sparsity. θ is dense.

        α = sign(θ)·max(0, |θ| - σ(s))

    A is where α is not zero (one element at least), B is everything. There is no sparsity to set: it follows
    from `s_init` and from the weight decay that the optimizer puts on s, which pulls s towards 0 and the
    threshold up.

    Attributes:
        s_init: What s starts at. The paper's -3200 for ResNet-50 over 100 epochs, with a weight decay of
            2e-5: a shorter run, or less decay, needs a larger one (-10 is a threshold of 5e-5).
        refresh_every: 1 in the paper. Up to the next refresh an element that has crossed the threshold
            upwards stays out.
    """

    forward_sparsity: float = field(init=False, default=0.0)
    backward_sparsity: float = field(init=False, default=0.0)
    _: KW_ONLY
    s_init: float = -3200.0
    refresh_every: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.s_init, bool) or not isinstance(self.s_init, int | float):
            raise TypeError(f"`s_init` must be a number, got {self.s_init!r}")
        if not -1e6 <= self.s_init <= 0:
            raise ValueError(
                f"`s_init` must be between -1e6 and 0 (a threshold of one half), got {self.s_init!r}"
            )
        check_steps("`refresh_every`", self.refresh_every, at_least=1)

    @property
    def resizes(self) -> bool:
        return True

    @property
    def learns_sparsity(self) -> bool:
        return True

    @property
    def fetches(self) -> bool:
        return False  # there is nothing outside B

    def is_due(self, step: int) -> bool:
        return step % self.refresh_every == 0

    @property
    def companion_type(self) -> type[Companion]:
        return SoftThreshold

    def companion(self, moment: Moment, sets: Sets, dtype: torch.dtype) -> Companion:
        return SoftThreshold(self.s_init, dtype)

    def choose(self, moment: Moment) -> Sets:
        companion = moment.companion or SoftThreshold(self.s_init, torch.float64)
        assert isinstance(companion, SoftThreshold)
        everything = torch.arange(moment.numel, device=companion.s.device)
        magnitudes = moment.theta.at(everything).abs()
        active = magnitudes > companion.threshold().detach().to(magnitudes)
        active[magnitudes.argmax()] = True
        return Sets(everything, active)
