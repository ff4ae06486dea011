"""`Moment`: what a method is shown of one weight when it chooses the sets."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from topkast.core.floor import Grid
from topkast.core.gradient import Tape
from topkast.core.reservoir import Theta
from topkast.core.sets import Counts, Sets


@dataclass(frozen=True)
class Moment:
    """One weight at one step.

    Attributes:
        theta: θ, to be asked for its largest elements or for given ones.
        counts: The sizes that the distribution gave the weight. Methods that move budgets between layers, or
            shrink them in time, start from these.
        generator: For random choices; depends on the weight's key and the step alone.
        step: Optimizer steps taken. 0 when the weight is made.
        present: Gives the present sets; None when the weight is made.
        tape: The dense gradient of the step just taken, for methods that asked for it.
        companion: What the method keeps beside the weight.
        name: The weight's, for messages.
        grid: Which outputs and inputs its elements join.
    """

    theta: Theta
    counts: Counts
    generator: torch.Generator
    step: int = 0
    present: Callable[[], Sets] | None = None
    tape: Tape | None = None
    companion: nn.Module | None = None
    name: str = ""
    grid: Grid | None = None

    @property
    def sets(self) -> Sets | None:
        """The present sets, read when they are asked for: as long as B, which some methods do not look at."""
        return None if self.present is None else self.present()

    @property
    def positions(self) -> Tensor:
        """Of the present B; only for a weight that has sets."""
        sets = self.sets
        assert sets is not None
        return sets.indices

    @property
    def numel(self) -> int:
        return self.counts.numel
