"""What checks on two ranks train: a network with every kind of layer, every method, and how runs are compared."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import topkast

Check = Callable[[int, Path], None]
CHECKS: dict[str, Check] = {}


def check(function: Check) -> Check:
    CHECKS[function.__name__] = function
    return function


class Net(nn.Module):
    """Tied, convolved, with a bias: every kind of layer there is a product for."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(20, 12)
        self.conv = nn.Conv1d(12, 12, 3, padding=1)
        self.mid = nn.Linear(12, 16)
        self.out = nn.Linear(16, 12)
        self.head = nn.Linear(12, 20)
        self.head.weight = self.embedding.weight

    def forward(self, ids: Tensor) -> Tensor:
        h = self.conv(self.embedding(ids).transpose(1, 2)).transpose(1, 2)
        return self.head(self.out(torch.tanh(self.mid(h))))


METHODS: dict[str, Callable[[], topkast.Method]] = {
    "TopKAST": lambda: topkast.TopKAST(0.8, 0.6, refresh_every=2, exchange_every=2),
    "TopKAST_two_clocks": lambda: topkast.TopKAST(0.8, 0.6, refresh_every=1, exchange_every=4),
    "TopKAST_under_adam": lambda: topkast.TopKAST(
        0.8, 0.6, exchange_every=4, exploration_rate=0.5, exploration_warmup=3, decay=0.1, hysteresis=1.1
    ),
    "TopKAST_with_a_floor": lambda: topkast.TopKAST(0.8, 0.6, exchange_every=4, min_fan_in=2),
    "TopKAST_random": lambda: topkast.TopKAST(
        0.8, 0.6, refresh_every=2, exchange_every=2, exploration="random"
    ),
    "TopKAST_until": lambda: topkast.TopKAST(0.8, 0.6, refresh_every=2, exchange_every=2, explore_until=6),
    "TopKAST_annealed": lambda: topkast.TopKAST(
        topkast.Anneal(0.0, 0.8, to_step=9), topkast.Anneal(0.0, 0.6, to_step=9), exchange_every=4
    ),
    "TopKAST_in_stages": lambda: topkast.TopKAST(
        topkast.Stages({0: 0.9, 3: 0.5, 8: 0.8}),
        0.3,
        exchange_every=4,
        exploration="random",
        explore_until=10,
    ),
    "Pruning": lambda: topkast.Pruning(0.8, begin=2, end=9, update_every=3),
    "Pruning_all": lambda: topkast.Pruning(0.8, begin=2, end=9, update_every=3, updates="all"),
    "Static": lambda: topkast.Static(0.8),
    "SET": lambda: topkast.SET(0.8, update_every=3),
    "RigL": lambda: topkast.RigL(0.8, update_every=3, t_end=30),
    "SNFS": lambda: topkast.SNFS(0.8, update_every=3, t_end=30, redistributes=False),
    "DeepR": lambda: topkast.DeepR(0.8),
    "DNW": lambda: topkast.DNW(0.8),
}


class Training:
    """A model on its ranks, or alone."""

    def __init__(
        self,
        method: topkast.Method,
        *,
        is_alone: bool = False,
        seed: int = 0,
        attach_first: bool = False,
        optimizer: Callable[[Any], torch.optim.Optimizer] | None = None,
        wrapper: dict[str, Any] | None = None,
        **options: Any,
    ) -> None:
        torch.manual_seed(seed)
        with torch.device("meta" if options.get("reservoir") == "implicit" else "cpu"):
            self.model = Net().double()
        self.sparse = topkast.sparsify(self.model, method, **{"engine": "native", **options})
        make = optimizer or (lambda p: torch.optim.Adam(p, lr=0.02))
        self.optimizer = make(self.model.parameters())
        self.called: nn.Module = self.model
        if attach_first:
            self.sparse.attach(self.optimizer)
        if not is_alone:
            self.called = DistributedDataParallel(self.model, **(wrapper or {}))
        if not attach_first:
            self.sparse.attach(self.optimizer, process_group="alone" if is_alone else None)

    def loss(self, ids: Tensor) -> Tensor:
        return nn.functional.cross_entropy(self.called(ids).flatten(0, 1), ids.roll(1, 1).flatten())

    def step(self, ids: Tensor) -> None:
        (self.loss(ids) + 1e-2 * self.sparse.penalty()).backward()
        self.optimizer.step()
        self.optimizer.zero_grad()

    def run(self, steps: int, rank: int | None) -> Training:
        """On all of each batch, or on a rank's half of it."""
        for step in range(steps):
            ids = batch(step)
            self.step(ids if rank is None else ids[4 * rank : 4 * rank + 4])
        return self


def batch(step: int) -> Tensor:
    return torch.randint(20, (8, 7), generator=torch.Generator().manual_seed(step))


def assert_alike(mine: Training, other: Training) -> None:
    """Sets exactly, numbers to float tolerance: of sums of 56 doubles in another order, over a few steps."""
    ours, theirs = mine.model.state_dict(), other.model.state_dict()
    assert list(ours) == list(theirs)
    for name, tensor in ours.items():
        if tensor.is_floating_point():
            torch.testing.assert_close(tensor, theirs[name], rtol=1e-8, atol=1e-11, msg=name)
        else:
            assert torch.equal(tensor, theirs[name]), name
    ours, theirs = mine.optimizer.state_dict(), other.optimizer.state_dict()
    tags = [[group["topkast"] for group in state["param_groups"]] for state in (ours, theirs)]
    assert tags[0] == tags[1]
    assert any(tag is not None for tag in tags[0][0])
    for key, state in ours["state"].items():
        for name, entry in state.items():
            torch.testing.assert_close(entry, theirs["state"][key][name], rtol=1e-7, atol=1e-13, msg=name)
