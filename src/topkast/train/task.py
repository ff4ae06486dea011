"""A task: a network, its batches, and how good it is on data it has not seen."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from typing import Any

import torch
from torch import Tensor, nn

from topkast.core.ranks import Ranks
from topkast.data.batches import Share
from topkast.models.network import Network


def device_of(model: nn.Module) -> torch.device:
    """Where a network computes, and so where its batches have to be; the CPU if it has no parameters."""
    return next((parameter.device for parameter in model.parameters()), torch.device("cpu"))


class Task(ABC):
    """What is trained, on what.

    Attributes:
        title: One line for people.
        quality_name: What `quality` measures, such as "bits per byte".
        higher_is_better: Whether more of it is better.
        unit: What a batch is counted in.
        units_per_step: How many of these.
        steps: How many steps make a short but real run.
        lr: A learning rate that suits the network dense and sparse.
        whole_name: What `quality(…, whole=True)` is taken over.
        share: Which part of every batch is this process's.
        ranks: Those that train on it together, or None.
    """

    title: str
    quality_name: str
    higher_is_better: bool
    unit: str
    units_per_step: int
    steps: int
    lr: float
    whole_name = "over all of it"
    share = Share()
    ranks: Ranks | None = None

    def join(self, ranks: Ranks) -> None:
        """From now on losses are those of this rank's share of each batch."""
        self.share, self.ranks = Share(ranks.rank, ranks.count), ranks

    @abstractmethod
    def network(self) -> Network:
        """The dense network."""

    @abstractmethod
    def inputs(self) -> dict[str, Any]:
        """What has to be known to use the network without the data it was trained on, as plain data."""

    @abstractmethod
    def example(self) -> Any:
        """An input of the network as a step has it, for counting: a tensor, or a tuple of arguments."""

    @abstractmethod
    def loss(self, model: nn.Module, step: int, generator: torch.Generator) -> Tensor:
        """The mean loss on this process's share of the batch of a step, counted from 0.

        What is drawn at random comes from `generator`, for all of the batch: every rank draws the same.
        """

    @abstractmethod
    def quality(self, model: nn.Module, *, whole: bool = False) -> float:
        """Quality on held-out data. If `whole`, as it is published: on all of it, or on the test part."""

    @abstractmethod
    def sizes(self) -> dict[str, Any]:
        """The options of the network and of its batches, with their values."""

    def files(self) -> dict[str, str]:
        """What else belongs into the run's folder, name → text."""
        return {}

    def aside(self) -> Task:
        """A copy, for passes that are not steps: this one goes on as if they had not been."""
        return copy.copy(self)

    # What a task remembers from one step to the next is part of a checkpoint.

    def state_dict(self) -> dict[str, Any]:
        """What the next step depends on, beside the network, for all of the batch: every rank calls it."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes back to where `state_dict` was called."""
        if state:
            raise ValueError(f"this task remembers nothing, got {sorted(map(str, state))}")
