"""DNW: Discovering Neural Wirings (Wortsman, Farhadi and Rastegari, NeurIPS 2019)."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, field

import torch

from topkast.core.moment import Moment
from topkast.core.schedule import check_steps
from topkast.core.sets import Sets
from topkast.methods.base import Method


@dataclass(frozen=True)
class DNW(Method):
    """A is the Top-K of θ in every step, B is everything: gradients pass straight through to the rest.

    Attributes:
        forward_sparsity: 1 - D.
        refresh_every: The paper's 1.
    """

    forward_sparsity: float
    backward_sparsity: float = field(init=False, default=0.0)
    _: KW_ONLY
    refresh_every: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        check_steps("`refresh_every`", self.refresh_every, at_least=1)

    @property
    def fetches(self) -> bool:
        return False  # there is nothing outside B

    def is_due(self, step: int) -> bool:
        return step % self.refresh_every == 0

    def choose(self, moment: Moment) -> Sets:
        forward = moment.theta.top(moment.counts.forward)
        return Sets.from_slots(forward, torch.arange(moment.numel, device=forward.device))
