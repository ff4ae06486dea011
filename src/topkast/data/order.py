"""The order of training examples: shuffled in every epoch, each step's batch a function of its number."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from topkast.data.draw import generator


@dataclass(frozen=True)
class Order:
    """Which examples make up the batch of a step.

    Epoch e goes through a permutation of its own, π(seed, e): its batch t is π[t·batch : (t + 1)·batch]. The
    last count mod batch of an epoch, others each time, are left out.

    Args:
        count: How many examples.
        batch: How many in a step.
        seed: Of all permutations.
    """

    count: int
    batch: int
    seed: int = 0

    def __post_init__(self) -> None:
        if not 1 <= self.batch <= self.count:
            raise ValueError(
                f"`batch` must be between 1 and the number of examples ({self.count}), got {self.batch}"
            )

    @property
    def steps_per_epoch(self) -> int:
        """Steps in which an epoch is gone through."""
        return self.count // self.batch

    def at(self, step: int) -> tuple[int, Tensor]:
        """The epoch of a step, counted through all epochs from 0, and the numbers of its examples."""
        if step < 0:
            raise ValueError(f"`step` must be 0 or more, got {step}")
        epoch, t = divmod(step, self.steps_per_epoch)
        return epoch, _permutation(self.count, self.seed, epoch)[t * self.batch : (t + 1) * self.batch]


@lru_cache(maxsize=2)  # steps of an epoch ask for it one after the other; ImageNet's takes 10 MB and 20 ms
def _permutation(count: int, seed: int, epoch: int) -> Tensor:
    return torch.randperm(count, generator=generator("order", seed, epoch))
