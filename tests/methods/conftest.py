"""One small model with every kind of layer, and one line per method: a new method adds a row to `METHODS`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import topkast
from topkast.methods.gated import Gated

VOCABULARY, LENGTH, WIDTH, CLASSES = 24, 6, 8, 5


class Example(nn.Module):
    """Embedding, convolution and linear layers in one."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.conv = nn.Conv2d(1, 6, 3, padding=1)
        self.hidden = nn.Linear(6 * LENGTH * WIDTH, 16)
        self.output = nn.Linear(16, CLASSES)

    def forward(self, ids: Tensor) -> Tensor:
        image = self.embedding(ids).unsqueeze(1)
        return self.output(torch.tanh(self.hidden(torch.relu(self.conv(image)).flatten(1))))


def batch(step: int) -> tuple[Tensor, Tensor]:
    """The data of one step, always the same."""
    generator = torch.Generator().manual_seed(step)
    ids = torch.randint(VOCABULARY, (12, LENGTH), generator=generator)
    return ids, torch.randint(CLASSES, (12,), generator=generator)


STEPS = 16  # long enough for every schedule below to begin, to act several times, and to end
METHODS: dict[str, Callable[[], topkast.Method]] = {
    "Dense": topkast.Dense,
    "Static": lambda: topkast.Static(0.8),
    "SET": lambda: topkast.SET(0.8, update_every=3),
    "SET, grown at zero": lambda: topkast.SET(0.8, update_every=3, grown_at="zero"),
    "RigL": lambda: topkast.RigL(0.8, t_end=12, update_every=3),
    "SNFS": lambda: topkast.SNFS(0.8, t_end=12, update_every=3),
    "SNFS within layers": lambda: topkast.SNFS(0.8, t_end=12, update_every=3, redistributes=False),
    "Pruning": lambda: topkast.Pruning(0.8, begin=2, end=11, update_every=2),
    "Pruning, all updated": lambda: topkast.Pruning(0.8, begin=2, end=11, update_every=2, updates="all"),
    "DNW": lambda: topkast.DNW(0.8),
    "STR": lambda: topkast.STR(s_init=-3.0),
    "L0": topkast.L0,
    "L0, cut": lambda: topkast.L0(penalty_warmup=5, cut_at=7),
    "VariationalDropout": lambda: topkast.VariationalDropout(log_sigma2_init=-3.0),
    "VariationalDropout, cut": lambda: topkast.VariationalDropout(log_sigma2_init=-3.0, cut_at=7),
    "DSR": lambda: topkast.DSR(0.8, update_every=3, threshold=0.03, target_fraction=0.1),
    "DeepR": lambda: topkast.DeepR(0.8, l1=1e-2),
    "TopKAST": lambda: topkast.TopKAST(0.8, 0.6, refresh_every=3, exchange_every=3),
    "TopKAST, two clocks": lambda: topkast.TopKAST(0.8, 0.6, refresh_every=1, exchange_every=4),
    "TopKAST, two clocks, random": lambda: topkast.TopKAST(
        0.8, 0.6, refresh_every=1, exchange_every=4, exploration="random"
    ),
    "TopKAST, two clocks (t)": lambda: topkast.TopKAST(
        0.8, 0.6, refresh_every=1, exchange_every=4, explore_until=7
    ),
    "TopKAST, exploring slowly": lambda: topkast.TopKAST(
        0.8, 0.6, exchange_every=4, exploration_rate=0.3, exploration_warmup=6
    ),
    "TopKAST, decay": lambda: topkast.TopKAST(0.8, 0.6, exchange_every=4, decay=0.1, explore_until=11),
    "TopKAST, hysteresis": lambda: topkast.TopKAST(0.8, 0.6, exchange_every=4, hysteresis=1.3),
    "TopKAST, fan-in": lambda: topkast.TopKAST(0.8, 0.6, exchange_every=4, min_fan_in=1),
    "TopKAST, fan-out, one clock": lambda: topkast.TopKAST(
        0.8, 0.6, refresh_every=3, exchange_every=3, min_fan_out=1, hysteresis=1.3
    ),
    "TopKAST, fan-in, random (t)": lambda: topkast.TopKAST(
        0.8, 0.6, exchange_every=4, min_fan_in=1, exploration="random", explore_until=7
    ),
    "TopKAST, hysteresis, global": lambda: topkast.TopKAST(
        0.8, 0.6, exchange_every=2, hysteresis=1.3, scope="global"
    ),
    "TopKAST, random": lambda: topkast.TopKAST(
        0.8, 0.6, refresh_every=3, exchange_every=3, exploration="random"
    ),
    "TopKAST (t)": lambda: topkast.TopKAST(0.8, 0.6, refresh_every=3, exchange_every=3, explore_until=7),
    "TopKAST, global": lambda: topkast.TopKAST(0.8, 0.6, refresh_every=3, exchange_every=3, scope="global"),
    "TopKAST, annealed": lambda: topkast.TopKAST(
        topkast.Anneal(0.0, 0.8, from_step=2, to_step=11),
        topkast.Anneal(0.0, 0.6, from_step=2, to_step=11),
        exchange_every=3,
    ),
    "TopKAST, A annealed, random, until": lambda: topkast.TopKAST(
        topkast.Anneal(0.6, 0.8, to_step=10, form="cosine"),
        0.6,
        exchange_every=3,
        exploration="random",
        explore_until=7,
    ),
    "TopKAST, up and down in stages": lambda: topkast.TopKAST(
        topkast.Stages({0: 0.9, 5: 0.5, 10: 0.8}),
        topkast.Stages({0: 0.8, 5: 0.4, 10: 0.6}),
        exchange_every=4,
        hysteresis=1.2,
        exploration_rate=0.5,
    ),
    "TopKAST, annealed, global": lambda: topkast.TopKAST(
        topkast.Anneal(0.2, 0.8, to_step=10),
        topkast.Anneal(0.1, 0.6, to_step=10),
        exchange_every=2,
        scope="global",
    ),
}


@dataclass
class Training:
    """A model in training, with everything that belongs to it."""

    model: nn.Module
    sparse: topkast.Handle
    optimizer: torch.optim.Optimizer

    @classmethod
    def start(cls, method: topkast.Method, seed: int = 0, engine: str = "masked") -> Training:
        torch.manual_seed(seed)
        model = Example().double()
        sparse = topkast.sparsify(model, method, engine=engine)
        if isinstance(method, Gated):  # gates that would be equal for many steps to come
            for weight in sparse.weights.values():
                next(weight.companion.learned()).data.add_(2 * torch.randn(weight.numel()))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-3)
        return cls(model, sparse, sparse.attach(optimizer))

    def step(self, number: int) -> Tensor:
        """Step number `number` (0 is the first). Gradients are set to zero before, so that they can be seen after."""
        ids, labels = batch(number)
        self.optimizer.zero_grad()
        loss = F.cross_entropy(self.model(ids), labels)
        if isinstance(self.sparse.method, Gated):
            loss = loss + 1e-4 * self.sparse.penalty()
        loss.backward()
        self.optimizer.step()
        return loss

    def run(self, first: int, last: int) -> Training:
        losses = [self.step(number) for number in range(first, last)]  # graphs stay alive, as in many loops
        assert all(torch.isfinite(loss) for loss in losses)
        return self

    def state(self) -> dict[str, Any]:
        """With torch's generator, from which noise is drawn."""
        parts = {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}
        return {**parts, "rng": torch.get_rng_state()}
