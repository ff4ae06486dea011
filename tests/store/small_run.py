"""A small run as a training loop has it, in all the variants that a checkpoint has to carry."""

from __future__ import annotations

import random
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import lr_scheduler

import topkast
from topkast.store import snapshot


def assert_same(a: Any, b: Any, path: str = "x") -> None:
    """Equal in value and in type, bit for bit."""
    a, b = (dict(x) if isinstance(x, OrderedDict) else x for x in (a, b))
    assert type(a) is type(b), path
    if isinstance(a, Tensor):
        assert (a.dtype, a.shape) == (b.dtype, b.shape), path
        assert bytes(a.contiguous().view(-1).view(torch.uint8).tolist()) == bytes(
            b.contiguous().view(-1).view(torch.uint8).tolist()
        ), path
    elif isinstance(a, dict):
        assert [(type(k), k) for k in a] == [(type(k), k) for k in b], path
        for key in a:
            assert_same(a[key], b[key], f"{path}/{key}")
    elif isinstance(a, list | tuple):
        assert len(a) == len(b), path
        for i, (x, y) in enumerate(zip(a, b, strict=True)):
            assert_same(x, y, f"{path}/{i}")
    elif isinstance(a, float):
        assert a.hex() == b.hex(), path
    else:
        assert a == b, path


class Net(nn.Module):
    """Tied, normalised, convolved; with dropout, which draws from the global generator."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(20, 12)
        self.conv = nn.Conv1d(12, 12, 3, padding=1)
        self.norm = nn.BatchNorm1d(12)
        self.drop = nn.Dropout(0.1)
        self.mid = nn.Linear(12, 12)
        self.head = nn.Linear(12, 20)
        self.head.weight = self.embedding.weight

    def forward(self, ids: Tensor) -> Tensor:
        h = self.norm(self.conv(self.embedding(ids).transpose(1, 2)))
        return self.head(self.drop(torch.tanh(self.mid(h.transpose(1, 2)))))


METHODS: dict[str, Callable[[], topkast.Method] | None] = {
    "dense": None,
    "Top-KAST": lambda: topkast.TopKAST(0.8, 0.6, refresh_every=3, exchange_every=3),
    "Top-KAST, two clocks": lambda: topkast.TopKAST(0.8, 0.6, refresh_every=1, exchange_every=5),
    "Top-KAST, random": lambda: topkast.TopKAST(
        0.8, 0.6, refresh_every=3, exchange_every=3, exploration="random"
    ),
    "Static": lambda: topkast.Static(0.8),
    "SET": lambda: topkast.SET(0.8, update_every=3),
    "RigL": lambda: topkast.RigL(0.8, update_every=3, t_end=30),
    "SNFS": lambda: topkast.SNFS(0.8, update_every=3, t_end=30),
    "DSR": lambda: topkast.DSR(0.8, update_every=3, threshold=0.05),
    "DeepR": lambda: topkast.DeepR(0.8),
    "L0": lambda: topkast.L0(cut_at=11),
    "VariationalDropout": lambda: topkast.VariationalDropout(log_sigma2_init=-3.0),
    "STR": lambda: topkast.STR(s_init=-2.0),
    "DNW": lambda: topkast.DNW(0.8),
    "Pruning": lambda: topkast.Pruning(0.8, begin=2, end=14, update_every=2),
}
OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "SGD": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True),
    "plain SGD": lambda p: torch.optim.SGD(p, lr=0.1),
    "Adam": lambda p: torch.optim.Adam(p, lr=0.02, amsgrad=True),
    "AdamW": lambda p: torch.optim.AdamW(p, lr=0.02, weight_decay=0.0),
    "RMSprop": lambda p: torch.optim.RMSprop(p, lr=0.005, momentum=0.5, centered=True),
}
SCHEDULES: dict[str, Callable[[torch.optim.Optimizer], Any]] = {
    "lambda": lambda o: lr_scheduler.LambdaLR(o, lambda step: 1 / (1 + step)),
    "steps": lambda o: lr_scheduler.MultiStepLR(o, [4, 9, 11]),
    "cosine": lambda o: lr_scheduler.CosineAnnealingLR(o, 20),
    "one cycle": lambda o: lr_scheduler.OneCycleLR(o, 0.1, total_steps=40),
    "in a row": lambda o: lr_scheduler.SequentialLR(
        o, [lr_scheduler.LinearLR(o), lr_scheduler.ExponentialLR(o, 0.9)], milestones=[5]
    ),
}


@dataclass
class Run:
    """A run as a training loop has it."""

    model: nn.Module
    sparse: topkast.Handle | None
    optimizer: torch.optim.Optimizer
    schedule: Any
    batches: torch.Generator
    losses: list[float]

    @classmethod
    def build(
        cls,
        seed: int,
        method: str = "Top-KAST",
        optimizer: str = "AdamW",
        schedule: str = "lambda",
        **options: Any,
    ) -> Run:
        torch.manual_seed(seed)
        random.seed(seed)
        with torch.device("meta" if options.get("reservoir") == "implicit" else "cpu"):
            model = Net()
        make = METHODS[method]
        sparse = None if make is None else topkast.sparsify(model, make(), **{"engine": "native", **options})
        made = OPTIMIZERS[optimizer](model.parameters())
        if sparse is not None:
            sparse.attach(made)
        batches = torch.Generator().manual_seed(seed)
        return cls(model, sparse, made, SCHEDULES[schedule](made), batches, [])

    @property
    def parts(self) -> dict[str, Any]:
        return {"model": self.model, "optimizer": self.optimizer, "schedule": self.schedule}

    def train(self, first: int, last: int) -> None:
        for _ in range(first, last):
            ids = torch.randint(20, (4, 7), generator=self.batches)
            loss = nn.functional.cross_entropy(self.model(ids).flatten(0, 1), ids.flatten())
            penalty = 0.0 if self.sparse is None else 1e-3 * self.sparse.penalty()
            (loss + penalty).backward()
            self.optimizer.step()
            self.optimizer.zero_grad()
            self.schedule.step()
            self.losses.append(loss.item() + random.random())

    def take(self, step: int) -> snapshot.Snapshot:
        kept = {"losses": self.losses, "best": (step, 0.5)}
        return snapshot.take(step, self.parts, generators={"batches": self.batches}, kept=kept)

    def restore(self, saved: snapshot.Snapshot) -> None:
        kept = snapshot.restore(saved, self.parts, generators={"batches": self.batches})
        self.losses = list(kept["losses"])
        assert kept["best"] == (saved.step, 0.5)

    def everything(self) -> dict[str, Any]:
        return vars(self.take(0))
