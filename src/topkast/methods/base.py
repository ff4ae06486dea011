"""What a method is: a choice of A and B, and when to choose again."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch

from topkast.core.distribution import check_sparsities
from topkast.core.reservoir import Theta
from topkast.core.sets import Counts, Sets


@dataclass(frozen=True)
class Method(ABC):
    """A sparse-training method. Holds settings only; all state is in the weights.

    Attributes:
        forward_sparsity: Share of weights outside A, 1 - D.
        backward_sparsity: Share of weights outside B, 1 - D - M. At most `forward_sparsity`.
    """

    forward_sparsity: float
    backward_sparsity: float

    def __post_init__(self) -> None:
        check_sparsities(
            self.forward_sparsity,
            self.backward_sparsity,
            "`forward_sparsity`",
            "`backward_sparsity`",
        )

    def exploration_end(self) -> int | None:
        """Step from which B∖A is frozen, or None for never."""
        return None

    @abstractmethod
    def is_due(self, step: int) -> bool:
        """Whether sets are chosen anew after step number `step` (1 is the first)."""

    @abstractmethod
    def choose(self, theta: Theta, counts: Counts, generator: torch.Generator) -> Sets:
        """The sets for the present θ. `generator` depends on the weight's key and the step alone."""

    @property
    def fetches(self) -> bool:
        """Whether elements of C may enter B later, so that something has to be known of them."""
        return True

    def densities(self, step: int, counts: Counts) -> tuple[float, float]:
        """What step number `step` (1 is the first) costs a weight whose sets have the sizes `counts`.

        Returns:
            The densities at which its products are computed, for accounting: of the forward pass and the
            input gradient, and of the weight gradient.
        """
        return counts.forward_density, counts.backward_density


class FixedSets(Method):
    """A base for methods that choose once: nothing of C is kept."""

    def is_due(self, step: int) -> bool:
        return False

    @property
    def fetches(self) -> bool:
        return False
