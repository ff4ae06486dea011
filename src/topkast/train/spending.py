"""FLOPs of each step of a run, with what a method's schedule adds to some of them."""

from __future__ import annotations

from topkast.cost.accounting import Flops
from topkast.methods.base import Method
from topkast.train.trainer import Trainer


class Spending:
    """What the steps of one run cost.

    Where a method's schedule says how dense each step is, that counts: RigL's dense gradients, pruning's way
    down, exploration that ends. Where sizes follow from training itself, those of the last look do.

    Args:
        trainer: Of the run.
        flops: Of one of its steps, by layer.
    """

    def __init__(self, trainer: Trainer, flops: Flops) -> None:
        self._trainer, self._flops = trainer, flops
        self._known: dict[tuple[tuple[float, float], ...], float] = {}

    @property
    def is_scheduled(self) -> bool:
        """Whether the cost of every step is known from its number."""
        method = self._trainer.method
        return method is None or not method.resizes or type(method).densities is not Method.densities

    def of(self, step: int, at_last_look: float) -> float:
        """FLOPs of step number `step`; 1 is the first."""
        method, sparse = self._trainer.method, self._trainer.sparse
        if method is None or sparse is None:
            return float(self._flops.total)
        if not self.is_scheduled:
            return at_last_look
        densities = {name: method.densities(step, weight.target) for name, weight in sparse.weights.items()}
        key = tuple(densities.values())
        if key not in self._known:
            self._known[key] = float(self._flops.at(densities).total)
        return self._known[key]
