"""The training loop: an ordinary one, plus the four lines that make it sparse."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import nn

from topkast.convert import Handle, sparsify
from topkast.methods import Method
from topkast.train.task import Task


@dataclass(frozen=True)
class Progress:
    """One line of a run's history.

    Attributes:
        step: Steps taken.
        loss: Mean training loss since the last line.
        quality: Held-out quality.
        changed: Share of weights that entered or left A at the last refresh (mean over layers).
        reservoir_used: Share of the initial C that has been in B (mean over layers).
    """

    step: int
    loss: float
    quality: float
    changed: float
    reservoir_used: float


@dataclass
class Run:
    """What came out of a training run."""

    model: nn.Module
    sparse: Handle | None
    history: list[Progress] = field(default_factory=list)
    seconds_per_step: float = 0.0

    @property
    def quality(self) -> float:
        return self.history[-1].quality


@dataclass(frozen=True)
class Settings:
    """How to train; the same for sparse and dense, so that a comparison differs in one thing."""

    steps: int
    lr: float
    penalty: float = 1e-4
    seed: int = 0
    engine: str = "auto"
    report_every: int = 50


def train(
    task: Task,
    method: Method | None,
    settings: Settings,
    report: Callable[[Progress], None] = lambda progress: None,
) -> Run:
    """Trains the task's network with AdamW and a cosine schedule; `method` None trains it dense."""
    torch.manual_seed(settings.seed)
    batches = torch.Generator().manual_seed(settings.seed)
    model = task.model()
    sparse = None if method is None else sparsify(model, method, engine=settings.engine)
    optimizer = torch.optim.AdamW(model.parameters(), lr=settings.lr, weight_decay=0.0)
    if sparse is not None:
        sparse.attach(optimizer)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, _warmup_and_cosine(settings.steps))
    run = Run(model, sparse)
    losses: list[float] = []
    seconds = 0.0
    for step in range(1, settings.steps + 1):
        started = time.perf_counter()
        loss = task.loss(model, batches)
        objective = loss if sparse is None else loss + settings.penalty * sparse.penalty()
        objective.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
        seconds += time.perf_counter() - started
        losses.append(loss.item())
        if step % settings.report_every == 0 or step == settings.steps:
            run.history.append(_progress(step, losses, task, model, sparse))
            report(run.history[-1])
            losses = []
    run.seconds_per_step = seconds / settings.steps
    return run


def _warmup_and_cosine(steps: int) -> Callable[[int], float]:
    warmup = max(1, steps // 20)

    def factor(step: int) -> float:
        if step < warmup:
            return (step + 1) / warmup
        return 0.5 * (1 + math.cos(math.pi * (step - warmup) / max(1, steps - warmup)))

    return factor


def _progress(
    step: int, losses: list[float], task: Task, model: nn.Module, sparse: Handle | None
) -> Progress:
    model.eval()
    quality = task.quality(model)
    model.train()
    stats = list(sparse.stats().values()) if sparse is not None else []
    return Progress(
        step=step,
        loss=sum(losses) / len(losses),
        quality=quality,
        changed=sum(s.changed for s in stats) / max(1, len(stats)),
        reservoir_used=sum(s.reservoir_used for s in stats) / max(1, len(stats)),
    )
