"""`Trainer`: one network in training, step by step. What is done around the steps is not its business."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from topkast.core.local import keep_local
from topkast.core.ranks import Ranks
from topkast.data.batches import generator
from topkast.methods.base import Method
from topkast.train.config import Config
from topkast.train.resolve import build, dense_groups, make_optimizer, make_schedule
from topkast.train.task import Task


class NotFinite(FloatingPointError):
    """The loss or a gradient is not a number: the step was not taken."""


class Objective(nn.Module):
    """From a step's number to its loss and to what is minimised: one call, for whoever wraps it.

    Args:
        model: The network.
        loss: Of a step, given its number and the generator of batches.
        penalty: What is added to it, or None.
    """

    def __init__(
        self,
        model: nn.Module,
        loss: Callable[[int, torch.Generator], Tensor],
        penalty: Callable[[], Tensor] | None,
    ) -> None:
        super().__init__()
        self.model, self.loss, self.penalty = model, loss, penalty

    def forward(self, step: int, batches: torch.Generator) -> tuple[Tensor, Tensor]:
        loss = self.loss(step, batches)
        return loss, loss if self.penalty is None else loss + self.penalty()


class Trainer:
    """A network, its method, optimizer and schedule.

    Args:
        config: Resolved (`resolve`).
        task: What is learned.
        method: How it is sparse; None for dense.
        ranks: The processes that train it together, each on its share of every batch; None for this alone.

    Attributes:
        model: The network.
        sparse: The handle to it; None if it is dense.
        step: Steps taken.
    """

    def __init__(self, config: Config, task: Task, method: Method | None, ranks: Ranks | None = None) -> None:
        self.config, self.task, self.method, self.ranks = config, task, method, ranks
        torch.manual_seed(config.train.seed)
        self.batches = torch.Generator().manual_seed(config.train.seed)
        self.model, self.sparse = build(config, task.network(), method)
        self.model.to(config.train.device)  # before the optimizer is made, as always with torch
        self.optimizer = make_optimizer(config, self._groups())
        if self.sparse is not None:
            self.sparse.attach(self.optimizer)
            self.sparse.expects_penalty = False  # the configuration says λ, also 0
        self.schedule = make_schedule(config, self.optimizer)
        self.step = 0
        self._objective: nn.Module = Objective(self.model, self._loss, self._penalty())
        if ranks is not None:
            task.join(ranks)
            self._objective = DistributedDataParallel(keep_local(self._objective))

    def _groups(self) -> list[dict[str, Any]]:
        options = self.config.train
        decay = options.weight_decay
        assert options.sparse_rate is not None
        if self.sparse is None:
            return dense_groups(self.model, decay)
        try:
            return self.sparse.param_groups(
                decay,
                # What the penalty is for Top-KAST is weight decay for the others.
                values_weight_decay=0.0 if self._has_penalty else decay,
                lr=options.lr,
                rate=options.sparse_rate,
                whole=bool(options.whole_rate),
                factors=dict.fromkeys(options.same_rate, 1.0),
            )
        except ValueError as error:  # what is left to be wrong is a pattern
            raise ValueError(f"train.same_rate: {error}") from None

    @property
    def _has_penalty(self) -> bool:
        return self.method is not None and self.method.has_penalty

    def parts(self) -> dict[str, Any]:
        """What a checkpoint saves, in the order in which it is loaded."""
        return {
            "model": self.model,
            "optimizer": self.optimizer,
            "schedule": self.schedule,
            "task": self.task,
        }

    def follow_schedule(self) -> None:
        """Sets the rates to those of the schedule, where a state was loaded that another one had set."""
        rates = [
            base * factor(self.step)
            for base, factor in zip(self.schedule.base_lrs, self.schedule.lr_lambdas, strict=True)
        ]
        for group, rate in zip(self.optimizer.param_groups, rates, strict=True):
            group["lr"] = rate
        self.schedule._last_lr = rates

    def take_step(self) -> float:
        """One step on one batch.

        Returns:
            The training loss, without penalty.

        Raises:
            NotFinite: The loss or a gradient is not finite. Nothing has been updated.
        """
        if self.ranks is not None:
            # Dropout differs between ranks, and is the same again when the step is repeated.
            own = generator("rank", self.config.train.seed, self.step, self.ranks.rank)
            torch.manual_seed(own.initial_seed())
        loss, objective = self._objective(self.step, self.batches)
        value = self._mean(loss)
        if not math.isfinite(value):
            raise NotFinite(f"the loss of step {self.step + 1} is {value}")
        objective.backward()
        self._check_gradients()
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.schedule.step()
        self.step += 1
        return value

    def _loss(self, step: int, batches: torch.Generator) -> Tensor:
        with self._precision():
            return self.task.loss(self.model, step, batches)

    def _penalty(self) -> Callable[[], Tensor] | None:
        sparse, factor, power = self.sparse, self.config.method.penalty, self.config.method.penalty_power
        if sparse is None or not self._has_penalty or not factor or sparse.method.applies_penalty:
            return None
        return lambda: factor * sparse.penalty(power)

    def _mean(self, loss: Tensor) -> float:
        """Over ranks, so that all of them see the same."""
        own = loss.detach().clone()
        return float(own if self.ranks is None else self.ranks.mean_(own))

    def _check_gradients(self) -> None:
        norm = nn.utils.clip_grad_norm_(self.model.parameters(), self._most_norm())
        if torch.isfinite(norm):
            return
        bad = [
            name
            for name, p in self.model.named_parameters()
            if p.grad is not None and not torch.isfinite(p.grad).all()
        ]
        where = bad[0] if bad else "their norm"
        raise NotFinite(f"the gradient of step {self.step + 1} is not finite, first in {where}")

    def _most_norm(self) -> float:
        """The norm that gradients are clipped to: of n of them with root mean square r it is r·√n."""
        options, limit = self.config.train, self.config.train.clip or math.inf
        if not options.clip_rms:
            return limit
        n = sum(p.grad.numel() for p in self.model.parameters() if p.grad is not None)
        return min(limit, options.clip_rms * math.sqrt(n))

    def quality(self) -> float:
        """On held-out data."""
        self.model.eval()
        try:
            with self._precision():
                return self.task.quality(self.model)
        finally:
            self.model.train()

    def _precision(self) -> AbstractContextManager[Any]:
        if self.config.train.precision == "bfloat16":
            return torch.autocast(torch.device(self.config.train.device).type, torch.bfloat16)
        return nullcontext()
