"""What the methods have in common that learn a gate or a noise scale for every weight."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import KW_ONLY, dataclass, field

import torch
from torch import Tensor

from topkast.core.moment import Moment
from topkast.core.schedule import check_steps
from topkast.core.sets import Sets
from topkast.core.slots import Companion, resize_
from topkast.methods.base import Method


class Gates(Companion):
    """One learned number for each element of B. Noise in training, and zeros in evaluation.

    The noise comes from torch's own generator, as dropout's does: whatever saves that resumes bit for bit.
    """

    cuts = True

    @abstractmethod
    def noisy(self, values: Tensor) -> Tensor:
        """What the products use in training; drawn anew at every call."""

    @abstractmethod
    def gated(self, values: Tensor) -> Tensor:
        """What they use in evaluation."""

    @abstractmethod
    def cost(self, values: Tensor) -> Tensor:
        """The complexity, summed over all elements."""

    @property
    def is_settled(self) -> bool:
        """Whether the values are gated already. One number is left then, which nothing looks at."""
        return any(parameter.ndim == 0 for parameter in self.learned())

    def used(self, values: Tensor) -> Tensor:
        if self.training and not self.is_settled:
            return self.noisy(values)
        return self.evaluated(values)

    def evaluated(self, values: Tensor) -> Tensor:
        return values if self.is_settled else self.gated(values)

    def complexity(self, values: Tensor) -> Tensor:
        return values.new_zeros(()) if self.is_settled else self.cost(values)

    def settle(self) -> None:
        # Not of length 0: files take empty tensors for shared ones.
        for parameter in self.learned():
            resize_(parameter, parameter.detach().new_zeros(()))


@dataclass(frozen=True)
class Gated(Method):
    """A base for methods that train all weights with noise, and end with those that the gates leave.

    A = B = everything, so training costs what it costs dense; which weights are zero is learned. The cut can
    be made during the run (`cut_at`), or by what exports the network. There is no sparsity to set: it follows
    from the factor of `Handle.penalty`, which is the sum of the gates' complexity.

    Attributes:
        penalty_warmup: Steps in which the penalty rises from 0 along a line.
        cut_at: Step after which the network is cut: θ becomes what evaluation uses, A = B is what is not zero
            (one element at least), and there is no noise and no penalty any more. None for never.
    """

    forward_sparsity: float = field(init=False, default=0.0)
    backward_sparsity: float = field(init=False, default=0.0)
    _: KW_ONLY
    penalty_warmup: int = 0
    cut_at: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_steps("`penalty_warmup`", self.penalty_warmup, at_least=0)
        if self.cut_at is not None:
            check_steps("`cut_at`", self.cut_at, at_least=1)

    @property
    def has_penalty(self) -> bool:
        return True

    def penalty_factor(self, step: int) -> float:
        """min(1, t/warm-up), where t steps were taken before this one."""
        taken = step - 1
        return taken / self.penalty_warmup if taken < self.penalty_warmup else 1.0

    @property
    def learns_sparsity(self) -> bool:
        return True

    @property
    def refreshes(self) -> bool:
        return self.cut_at is not None or self.penalty_warmup > 0  # both count the steps

    @property
    def resizes(self) -> bool:
        return self.cut_at is not None

    @property
    def fetches(self) -> bool:
        return False  # there is nothing outside B that anything comes back from

    def is_due(self, step: int) -> bool:
        return step == self.cut_at

    def last_step(self) -> int | None:
        return self.cut_at

    def choose(self, moment: Moment) -> Sets:
        sets = moment.sets
        if sets is None:
            return Sets.of(torch.arange(moment.numel))
        gates = moment.companion
        assert isinstance(gates, Gates)
        if moment.step != self.cut_at or gates.is_settled:
            return sets
        values = moment.theta.at(sets.indices)
        stays = gates.evaluated(values).detach() != 0
        stays[values.abs().argmax()] |= ~stays.any()
        positions = sets.indices[stays]
        return Sets(positions, torch.ones_like(positions, dtype=torch.bool), settles=True)
