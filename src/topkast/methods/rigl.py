"""RigL: Rigging the Lottery (Evci et al., ICML 2020)."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass

from torch import Tensor

from topkast.core.moment import Moment
from topkast.core.schedule import check_steps, cosine
from topkast.core.sets import Counts, Sets
from topkast.methods.drop_and_grow import DropAndGrow


@dataclass(frozen=True)
class RigL(DropAndGrow):
    """Drops the smallest f(t) of A and grows where the dense gradient is largest.

        f(t) = f/2·(1 + cos(π·t/T_end))

    The dense gradient is computed at update steps only, in chunks of rows (`core.gradient`).

    Attributes:
        forward_sparsity: 1 - D.
        t_end: T_end: from here on the sets stay. The paper's is three quarters of the run.
        drop_fraction: f, called α in the paper. Its 0.3.
        update_every: ΔT. The paper's 100.
    """

    _: KW_ONLY
    t_end: int

    def __post_init__(self) -> None:
        super().__post_init__()
        check_steps("`t_end`", self.t_end, at_least=1)
        if self.t_end <= self.update_every:
            raise ValueError(
                f"`t_end` must be after the first update (`update_every` is {self.update_every}), "
                f"got {self.t_end}: the sets would never be updated"
            )

    def is_due(self, step: int) -> bool:
        return step < self.t_end and super().is_due(step)

    def fraction(self, step: int) -> float:
        return cosine(step, self.t_end, self.drop_fraction)

    def wants_gradient(self, step: int) -> bool:
        return self.is_due(step)

    def choose(self, moment: Moment) -> Sets:
        sets = moment.sets
        if sets is not None and not moment.tape:  # the layer took no part in this step
            return sets
        return super().choose(moment)

    def grow(self, moment: Moment, kept: Tensor, count: int) -> Tensor:
        assert moment.tape is not None
        return moment.tape.top(count, kept)

    def densities(self, step: int, counts: Counts) -> tuple[float, float]:
        return counts.forward_density, 1.0 if self.is_due(step) else counts.forward_density

    def last_step(self) -> int:
        return self.t_end
