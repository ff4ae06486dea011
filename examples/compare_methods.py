"""Every method on one network and one data set: accuracy, training FLOPs, time per step and bytes.

The network is an MLP 784-512-256-10 on Fashion-MNIST, its two hidden layers sparse; SGD with momentum, 6
epochs, a cosine schedule, and L2 of 1e-4 for all (Top-KAST's is its exploration penalty). Each run is written
to a file when it is done, so that a comparison that was stopped goes on where it was.

    python examples/compare_methods.py --data FOLDER --runs runs.jsonl            # an hour on two cores
    python examples/compare_methods.py --data FOLDER --runs runs.jsonl --time     # adds time and bytes
    python examples/compare_methods.py --data FOLDER --runs runs.jsonl --search   # factors of two penalties
    python examples/compare_methods.py --runs runs.jsonl --table                  # prints the tables
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

import topkast
from topkast.data.images import read_images
from topkast.models import MLP
from topkast.reproduce.coefficient import Found, find_coefficient

SIZES, BATCH, LR, DECAY = [784, 512, 256, 10], 128, 0.05, 1e-4
PAIRS = ((0.9, 0.8), (0.98, 0.95), (0.99, 0.98))
# STR has no sparsity to set: s at the start and its decay, found by trying, to come out near the others.
STR_SETTINGS = {0.9: (-8.0, 1.2e-2), 0.98: (-8.0, 2.65e-2), 0.99: (-8.0, 3.7e-2)}
# L0 and variational dropout have none either: factors of their penalty, found with a seed of its own.
COEFFICIENTS = {
    "L0": {0.9: 1.28e-5, 0.98: 3.65e-5, 0.99: 5.87e-5},
    "variational dropout": {0.9: 4.66e-6, 0.98: 1.65e-5, 0.99: 3.25e-5},
}
SEARCH_SEED = 1000
# Gates have Adam, as in both papers: their gradients are too small for the rate of the weights.
GATE_LR = 0.01

PLAIN = "dense, plain PyTorch"
Data = tuple[Tensor, Tensor, Tensor, Tensor]
Make = Callable[[float, float, int], topkast.Method]


def _twelfth(steps: int) -> int:
    return max(1, steps // 12)


# Settings are those of the methods' own papers, in shares of the run where the papers speak of epochs.
METHODS: dict[str, Make] = {
    "dense": lambda f, b, steps: topkast.Dense(),
    "static": lambda f, b, steps: topkast.Static(f),
    "SET": lambda f, b, steps: topkast.SET(f, update_every=_twelfth(steps)),
    "DEEP R": lambda f, b, steps: topkast.DeepR(f),
    "DSR": lambda f, b, steps: topkast.DSR(f, update_every=min(100, _twelfth(steps))),
    "SNFS": lambda f, b, steps: topkast.SNFS(f, t_end=steps, update_every=_twelfth(steps)),
    "RigL": lambda f, b, steps: topkast.RigL(f, t_end=3 * steps // 4, update_every=min(100, _twelfth(steps))),
    "pruning": lambda f, b, steps: topkast.Pruning(
        f, begin=steps // 10, end=3 * steps // 4, update_every=min(100, _twelfth(steps))
    ),
    "DNW": lambda f, b, steps: topkast.DNW(f),
    "STR": lambda f, b, steps: topkast.STR(s_init=STR_SETTINGS[f][0]),
    "L0": lambda f, b, steps: topkast.L0(cut_at=3 * steps // 4),
    "variational dropout": lambda f, b, steps: topkast.VariationalDropout(
        penalty_warmup=steps // 4, cut_at=3 * steps // 4
    ),
    "Top-KAST": lambda f, b, steps: topkast.TopKAST(f, b, refresh_every=10),
    "Top-KAST (random)": lambda f, b, steps: topkast.TopKAST(f, b, refresh_every=10, exploration="random"),
    "Top-KAST (t = half)": lambda f, b, steps: topkast.TopKAST(
        f, b, refresh_every=10, explore_until=steps // 2
    ),
    "Top-KAST (global)": lambda f, b, steps: topkast.TopKAST(f, b, refresh_every=10, scope="global"),
}


class Plain:
    """The dense network in plain PyTorch, with nothing of the library in it: for its time and bytes."""

    def __init__(self, data: Data) -> None:
        self.x, self.y = data[:2]
        torch.manual_seed(0)
        self.model = MLP(SIZES)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=LR, momentum=0.9, weight_decay=DECAY)

    def batches(self) -> Iterator[Tensor]:
        while True:
            yield torch.randint(len(self.x), (BATCH,))

    def backward(self, chosen: Tensor) -> None:
        F.cross_entropy(self.model(self.x[chosen]), self.y[chosen]).backward()

    def step(self, chosen: Tensor) -> None:
        self.backward(chosen)
        self.optimizer.step()
        self.optimizer.zero_grad()

    def held(self) -> int:
        return 3 * sum(p.nbytes for p in self.model.parameters())  # with gradient and momentum


class Trainer:
    """One network, one method."""

    def __init__(
        self,
        name: str,
        pair: tuple[float, float],
        seed: int,
        data: Data,
        epochs: int,
        coefficient: float | None = None,
    ) -> None:
        self.x, self.y, self.x_test, self.y_test = data
        self.epochs = epochs
        self.steps = epochs * (len(self.x) // BATCH)
        torch.manual_seed(seed)
        self.model = MLP(SIZES)
        method = METHODS[name](*pair, self.steps)
        method.check_run(self.steps)
        # Dense kernels are the right ones where B is everything.
        engine = "masked" if method.backward_sparsity == 0 else "auto"
        self.sparse = topkast.sparsify(self.model, method, keep_dense="last", engine=engine)
        self.coefficient = COEFFICIENTS[name][pair[0]] if name in COEFFICIENTS else DECAY
        if coefficient is not None:
            self.coefficient = coefficient
        self.has_penalty = method.has_penalty
        companions = [weight.companion for weight in self.sparse.weights.values()]
        self.gates = [p for c in companions if c is not None for p in c.learned()]
        self.optimizer = self.sparse.attach(torch.optim.SGD(self.groups(pair), lr=LR, momentum=0.9))
        self.gate_optimizer = torch.optim.Adam(self.gates, lr=GATE_LR) if self.gates else None
        self.schedule = torch.optim.lr_scheduler.LambdaLR(
            self.optimizer, lambda s: 0.5 * (1 + math.cos(math.pi * s / self.steps))
        )

    def groups(self, pair: tuple[float, float]) -> list[dict[str, Any]]:
        """Parameter groups with their weight decay, without gates."""
        thresholds = [p for name, p in self.model.named_parameters() if name.endswith("companion.s")]
        groups = self.sparse.param_groups(DECAY, values_weight_decay=0.0 if self.has_penalty else DECAY)
        for group in groups:
            others = (*thresholds, *self.gates)
            group["params"] = [p for p in group["params"] if all(p is not other for other in others)]
        if thresholds:
            groups.append({"params": thresholds, "weight_decay": STR_SETTINGS[pair[0]][1]})
        return [group for group in groups if group["params"]]

    def batches(self) -> Iterator[Tensor]:
        for _ in range(self.epochs):
            yield from torch.randperm(len(self.x))[: len(self.x) // BATCH * BATCH].split(BATCH)

    def backward(self, chosen: Tensor) -> None:
        loss = F.cross_entropy(self.model(self.x[chosen]), self.y[chosen])
        if self.has_penalty:
            loss = loss + self.coefficient * self.sparse.penalty()
        loss.backward()

    def step(self, chosen: Tensor) -> None:
        self.backward(chosen)
        if self.gate_optimizer is not None:
            self.gate_optimizer.step()
            self.gate_optimizer.zero_grad()
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.schedule.step()

    @torch.no_grad()
    def accuracy(self) -> float:
        self.model.eval()
        return 100 * float((self.model(self.x_test).argmax(1) == self.y_test).float().mean())

    def held(self) -> int:
        """Bytes, with gradients and Plans in place."""
        return self.sparse.memory().sparse

    def training_fraction(self) -> float:
        """FLOPs of the run against dense."""
        return self.sparse.flops(self.x[:BATCH], steps=self.steps).training_fraction

    def learned_fraction(self, forward: float, backward: float) -> float:
        """The same for a method that learns its density: means over the steps, of A and of B."""
        flops = self.sparse.flops(self.x[:BATCH])
        return flops.at({layer.name: (forward, backward) for layer in flops.layers[:-1]}).training_fraction


def train(
    name: str,
    pair: tuple[float, float],
    seed: int,
    data: Data,
    epochs: int,
    coefficient: float | None = None,
) -> dict[str, Any]:
    """One run from beginning to end; `coefficient` is the penalty's, if it is not the method's own."""
    trainer = Trainer(name, pair, seed, data, epochs, coefficient)
    densities: list[tuple[float, float]] = []
    for number, chosen in enumerate(trainer.batches()):
        if number % 50 == 0:
            densities.append((_share(trainer.sparse, "forward"), _share(trainer.sparse, "backward")))
        trainer.step(chosen)
    means = [statistics.mean(side) for side in zip(*densities, strict=True)]
    learns = trainer.sparse.method.learns_sparsity
    return {
        "method": name,
        "pair": pair,
        "seed": seed,
        "epochs": epochs,
        "accuracy": trainer.accuracy(),
        "density": _share(trainer.sparse, "evaluated"),
        "flops": trainer.learned_fraction(*means) if learns else trainer.training_fraction(),
    }


def _share(sparse: topkast.Handle, part: str) -> float:
    """Of all elements of sparse layers: those in A, in B, or in use in evaluation."""
    stats = sparse.stats().values()
    return sum(getattr(s, part) for s in stats) / sum(s.numel for s in stats)


def search(name: str, pair: tuple[float, float], data: Data, epochs: int) -> Found:
    """The factor of a penalty that comes out at the pair's forward sparsity, with another seed."""

    def measured(coefficient: float) -> float:
        row = train(name, pair, SEARCH_SEED, data, epochs, coefficient)
        print(f"{name}, {coefficient:.4g}: density {row['density']:.2%}, {row['accuracy']:.2f} %", flush=True)
        return 1 - row["density"]

    return find_coefficient(measured, pair[0], low=1e-7, high=1e-3, tolerance=0.05 * (1 - pair[0]))


def time_steps(pair: tuple[float, float], data: Data, rounds: int, steps: int) -> list[dict[str, Any]]:
    """Milliseconds per step of every method, in turns, in the middle of a run."""
    trainers: dict[str, Trainer | Plain] = {PLAIN: Plain(data)}
    trainers |= {name: Trainer(name, pair, 0, data, epochs=12) for name in METHODS}
    streams = {name: trainer.batches() for name, trainer in trainers.items()}
    seconds: dict[str, list[float]] = {name: [] for name in trainers}
    for turn in range(rounds + 1):
        for name, trainer in trainers.items():
            started = time.perf_counter()
            for _ in range(steps):
                trainer.step(next(streams[name]))
            if turn:
                seconds[name].append((time.perf_counter() - started) / steps)
    rows = []
    for name, trainer in trainers.items():
        trainer.backward(next(streams[name]))
        ms = 1000 * statistics.median(seconds[name])
        rows.append({"method": name, "pair": pair, "ms": ms, "bytes": trainer.held()})
    return rows


def load(folder: Path, count: int | None) -> Data:
    x, y = read_images(folder / "fashion-mnist", "train")
    x_test, y_test = read_images(folder / "fashion-mnist", "t10k")
    mean, std = x.mean(), x.std()
    return (x[:count] - mean) / std, y[:count], (x_test - mean) / std, y_test


def table(rows: list[dict[str, Any]]) -> str:
    """Markdown, one table per pair of sparsities."""
    lines: list[str] = []
    for pair in PAIRS:
        runs = [r for r in rows if tuple(r["pair"]) == pair and "accuracy" in r]
        timed = {r["method"]: r for r in rows if tuple(r["pair"]) == pair and "ms" in r}
        if not runs:
            continue
        lines += [f"\n{100 * pair[0]:g}/{100 * pair[1]:g} %\n"]
        lines += ["| method | test accuracy, % | density at the end | training FLOPs | ms per step | bytes |"]
        lines += ["|---|---|---|---|---|---|"]
        if PLAIN in timed:
            lines.append(f"| {PLAIN} | | | | {_costs(timed[PLAIN])} |")
        for name in METHODS:
            mine = [r for r in runs if r["method"] == name]
            if mine:
                lines.append(_line(name, mine, timed.get(name)))
    return "\n".join(lines)


def _line(name: str, runs: list[dict[str, Any]], timed: dict[str, Any] | None) -> str:
    accuracies = [r["accuracy"] for r in runs]
    spread = f" ± {statistics.stdev(accuracies):.2f}" if len(runs) > 1 else ""
    mean = {key: statistics.mean(r[key] for r in runs) for key in ("density", "flops")}
    cells = (
        name,
        f"{statistics.mean(accuracies):.2f}{spread}",
        f"{mean['density']:.2%}",
        f"{mean['flops']:.3f}",
        " | " if timed is None else _costs(timed),
    )
    return "| " + " | ".join(cells) + " |"


def _costs(timed: dict[str, Any]) -> str:
    return f"{timed['ms']:.2f} | {timed['bytes'] / 1e6:.2f} MB"


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument(
        "--data", type=Path, help="folder with fashion-mnist/, as the README of the data says"
    )
    parser.add_argument("--runs", type=Path, required=True, help="a line of JSON is added here for each run")
    parser.add_argument("--methods", default=",".join(METHODS), type=lambda s: s.split(","))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--images", type=int, help="of the training set; all by default")
    parser.add_argument(
        "--shard", default="0/1", help="i/n: every n-th run from the i-th on, for several processes"
    )
    parser.add_argument(
        "--search", action="store_true", help="look for the factors of L0 and variational dropout"
    )
    parser.add_argument("--time", action="store_true", help="time the steps of all methods in turns")
    parser.add_argument("--table", action="store_true", help="print the tables of what is there")
    return parser.parse_args(arguments)


def main(options: argparse.Namespace) -> None:
    rows = (
        [json.loads(line) for line in options.runs.read_text().splitlines()] if options.runs.exists() else []
    )
    if options.table:
        print(table(rows))
        return
    data = load(options.data, options.images)

    def keep(row: dict[str, Any]) -> None:
        with options.runs.open("a") as file:
            file.write(json.dumps(row) + "\n")
        print(row, flush=True)

    if options.search:
        for name in [m for m in options.methods if m in COEFFICIENTS]:
            for pair in PAIRS:
                print(name, pair, search(name, pair, data, options.epochs), flush=True)
        return
    if options.time:
        for pair in PAIRS:
            for row in time_steps(pair, data, rounds=5, steps=100):
                keep(row)
        return
    done = {(r["method"], *r["pair"], r["seed"]) for r in rows if "accuracy" in r}
    jobs = [(m, p, s) for s in range(options.seeds) for p in PAIRS for m in options.methods]
    first, step = (int(part) for part in options.shard.split("/"))
    for name, pair, seed in jobs[first::step]:
        if (name, *pair, seed) not in done:
            keep(train(name, pair, seed, data, options.epochs))


if __name__ == "__main__":
    main(parse())
