"""SNFS: Sparse Networks From Scratch (Dettmers and Zettlemoyer, 2019)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass

import torch
from torch import Tensor

from topkast.core.distribution import share_out
from topkast.core.moment import Moment
from topkast.core.schedule import check_fraction, check_steps, cosine
from topkast.core.select import top_k
from topkast.core.sets import Counts, Sets
from topkast.core.slots import Companion
from topkast.core.weight import SparseWeight
from topkast.methods.drop_and_grow import DropAndGrow


class Momentum(Companion):
    """The smoothed gradient of every element: of dense size, which is the method's own price."""

    smoothed: Tensor

    def __init__(self, numel: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.register_buffer("smoothed", torch.zeros(numel, dtype=dtype))

    @torch.no_grad()
    def add(self, first: int, gradient: Tensor, beta: float) -> None:
        piece = self.smoothed[first : first + gradient.numel()]
        piece.mul_(beta).add_(gradient.to(piece), alpha=1 - beta)


@dataclass(frozen=True)
class SNFS(DropAndGrow):
    """Drops the smallest f(t) of A and grows where the momentum of the gradient is largest.

    The freed elements go to the layers in proportion to the mean momentum (magnitude) of what they keep.

    The dense gradient is computed in every step, and its momentum is kept for every element: dense in memory
    and in the weight gradient, sparse in the rest.

    Attributes:
        forward_sparsity: 1 - D.
        t_end: Step at which f(t) has gone down to 0, by a cosine.
        drop_fraction: f. The paper's 0.2.
        update_every: An epoch in the paper.
        beta: Of the momentum. The paper's 0.9.
        redistributes: Whether elements move between layers.
    """

    _: KW_ONLY
    t_end: int
    drop_fraction: float = 0.2
    beta: float = 0.9
    redistributes: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        check_steps("`t_end`", self.t_end, at_least=1)
        check_fraction("`beta`", self.beta)

    @property
    def resizes(self) -> bool:
        return self.redistributes

    @property
    def is_global(self) -> bool:
        return self.redistributes

    def is_due(self, step: int) -> bool:
        return step < self.t_end and super().is_due(step)

    def fraction(self, step: int) -> float:
        return cosine(step, self.t_end, self.drop_fraction)

    def wants_gradient(self, step: int) -> bool:
        return step < self.t_end

    @property
    def companion_type(self) -> type[Companion]:
        return Momentum

    def companion(self, moment: Moment, sets: Sets, dtype: torch.dtype) -> Companion:
        return Momentum(moment.numel, dtype)

    def after_step(self, weight: SparseWeight, lr: float) -> None:
        if weight.tape and isinstance(weight.companion, Momentum):
            for first, chunk in weight.tape.chunks():
                weight.companion.add(first, chunk, self.beta)

    def grow(self, moment: Moment, kept: Tensor, count: int) -> Tensor:
        momentum = _smoothed(moment)
        free = torch.ones(momentum.numel(), dtype=torch.bool, device=momentum.device)
        free[kept.to(momentum.device)] = False
        places = torch.nonzero(free).flatten()
        return places[top_k(momentum[places], count)]

    def choose_together(self, moments: Mapping[str, Moment]) -> dict[str, Sets]:
        if any(moment.present is None for moment in moments.values()):  # the first sets
            return super().choose_together(moments)
        kept = {name: self.kept(m, m.positions) for name, m in moments.items()}
        num_freed = sum(m.positions.numel() - kept[name].numel() for name, m in moments.items())
        means = [float(_smoothed(m)[kept[name]].abs().mean()) for name, m in moments.items()]
        room = [m.numel - kept[name].numel() for name, m in moments.items()]
        shares = dict(zip(moments, share_out(num_freed, means, room), strict=True))
        return {name: self.grown(m, kept[name], shares[name]) for name, m in moments.items()}

    def densities(self, step: int, counts: Counts) -> tuple[float, float]:
        return counts.forward_density, 1.0 if self.wants_gradient(step) else counts.forward_density

    def last_step(self) -> int:
        return self.t_end


def _smoothed(moment: Moment) -> Tensor:
    assert isinstance(moment.companion, Momentum)
    return moment.companion.smoothed
