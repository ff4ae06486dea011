"""`Trainer`: one network in training, step by step. What is done around the steps is not its business."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from topkast.methods.base import Method
from topkast.train.build import build
from topkast.train.config import Config
from topkast.train.resolve import dense_groups, has_penalty, make_optimizer, make_schedule
from topkast.train.task import Task


class NotFinite(FloatingPointError):
    """The loss or a gradient is not a number: the step was not taken."""


class Trainer:
    """A network, its method, optimizer and schedule.

    Args:
        config: Resolved (`resolve`).
        task: What is learned.
        method: How it is sparse; None for dense.

    Attributes:
        model: The network.
        sparse: The handle to it; None if it is dense.
        step: Steps taken.
    """

    def __init__(self, config: Config, task: Task, method: Method | None) -> None:
        self.config, self.task, self.method = config, task, method
        torch.manual_seed(config.train.seed)
        self.batches = torch.Generator().manual_seed(config.train.seed)
        self.model, self.sparse = build(config, task.network(), method)
        self.optimizer = make_optimizer(config, self._groups())
        if self.sparse is not None:
            self.sparse.attach(self.optimizer)
        self.schedule = make_schedule(config, self.optimizer)
        self.step = 0

    def _groups(self) -> list[dict[str, Any]]:
        decay = self.config.train.weight_decay
        if self.sparse is None:
            return dense_groups(self.model, decay)
        # What the penalty is for Top-KAST is weight decay for the others.
        return self.sparse.param_groups(decay, values_weight_decay=0.0 if has_penalty(self.method) else decay)

    def parts(self) -> dict[str, Any]:
        """What a checkpoint saves, in the order in which it is loaded."""
        return {
            "model": self.model,
            "optimizer": self.optimizer,
            "schedule": self.schedule,
            "task": self.task,
        }

    def take_step(self) -> float:
        """One step on one batch.

        Returns:
            The training loss, without penalty.

        Raises:
            NotFinite: The loss or a gradient is not finite. Nothing has been updated.
        """
        with self._precision():
            loss = self.task.loss(self.model, self.step, self.batches)
        value = loss.item()
        if not torch.isfinite(loss):
            raise NotFinite(f"the loss of step {self.step + 1} is {value}")
        self._objective(loss).backward()
        self._check_gradients()
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.schedule.step()
        self.step += 1
        return value

    def _objective(self, loss: Tensor) -> Tensor:
        if self.sparse is None or not has_penalty(self.method) or self.config.method.penalty == 0:
            return loss
        options = self.config.method
        return loss + options.penalty * self.sparse.penalty(options.penalty_power)

    def _check_gradients(self) -> None:
        limit = self.config.train.clip or float("inf")
        norm = nn.utils.clip_grad_norm_(self.model.parameters(), limit)
        if torch.isfinite(norm):
            return
        bad = [
            name
            for name, p in self.model.named_parameters()
            if p.grad is not None and not torch.isfinite(p.grad).all()
        ]
        where = bad[0] if bad else "their norm"
        raise NotFinite(f"the gradient of step {self.step + 1} is not finite, first in {where}")

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
            return torch.autocast("cpu", torch.bfloat16)
        return nullcontext()
