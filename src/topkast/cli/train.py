"""`topkast train`: a short, real run, always sparse, beside a fixed random mask and the dense network."""

from __future__ import annotations

import argparse
from typing import Any

import torch

from topkast.methods import Method, Static, TopKAST
from topkast.train.loop import Progress, Run, Settings, train
from topkast.train.task import TASKS, Task


def add_parser(commands: Any) -> None:
    parser = commands.add_parser("train", help="train a small network, always sparse")
    parser.add_argument("task", nargs="?", choices=sorted(TASKS), default="text")
    parser.add_argument("--forward-sparsity", type=float, default=0.9, metavar="S")
    parser.add_argument("--backward-sparsity", type=float, default=0.8, metavar="S")
    parser.add_argument("--refresh-every", type=int, default=1, metavar="N")
    parser.add_argument("--steps", type=int, metavar="N", help="default: a minute's worth")
    parser.add_argument("--penalty", type=float, default=1e-4, metavar="λ")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--engine", default="auto", help="auto, native, csr or masked")
    parser.add_argument(
        "--reference",
        default="static,dense",
        help="what to train beside it: static, dense, both with a comma, or none",
    )
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> None:
    method = TopKAST(options.forward_sparsity, options.backward_sparsity, refresh_every=options.refresh_every)
    references = _references(options.reference, method)
    if options.steps is not None and options.steps < 1:
        raise ValueError(f"--steps must be at least 1, got {options.steps}")
    task = TASKS[options.task]()
    settings = Settings(
        steps=options.steps or task.steps,
        lr=task.lr,
        penalty=options.penalty,
        seed=options.seed,
        engine=options.engine,
    )
    print(f"data: {task.title}")
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads, {settings.steps} steps")
    runs = {"Top-KAST": _run("Top-KAST", task, method, settings)}
    for name, reference in references.items():
        runs[name] = _run(name, task, reference, settings)
    _summary(task, runs)


def _references(wanted: str, method: TopKAST) -> dict[str, Method | None]:
    known: dict[str, tuple[str, Method | None]] = {
        "static": ("fixed random mask", Static(method.forward_sparsity)),
        "dense": ("dense", None),
    }
    names = [] if wanted == "none" else wanted.split(",")
    for name in names:
        if name not in known:
            raise ValueError(f"--reference takes {', '.join(known)} or none, got {name!r}")
    return dict(known[name] for name in names)


def _run(name: str, task: Task, method: Method | None, settings: Settings) -> Run:
    print(f"\n{name}")
    print(f"{'step':>6}  {'loss':>7}  {'held-out ' + task.quality_name:>22}  {'A changed':>9}  {'C used':>7}")

    def report(progress: Progress) -> None:
        sets = f"{progress.changed:9.3%}  {progress.reservoir_used:7.2%}" if method is not None else ""
        print(f"{progress.step:6d}  {progress.loss:7.4f}  {progress.quality:22.3f}  {sets}", flush=True)

    result = train(task, method, settings, report)
    if result.sparse is not None and isinstance(method, TopKAST):
        print()
        print(result.sparse)
        print("\nhow the sets moved, by layer")
        for layer, stats in result.sparse.stats().items():
            print(
                f"  {layer:24} A changed {stats.changed:7.3%} at the last refresh; of the initial C "
                f"{stats.reservoir_used:6.2%} has been in B, {stats.reservoir_activated:6.2%} in A"
            )
    return result


def _summary(task: Task, runs: dict[str, Run]) -> None:
    arrow = "higher" if task.higher_is_better else "lower"
    print(f"\n{'':20}  {'held-out ' + task.quality_name:>22}  {'parameters in use':>18}  {'ms per step':>11}")
    for name, result in runs.items():
        print(
            f"{name:20}  {result.quality:22.3f}  {_parameters_in_use(result):18,}  "
            f"{1000 * result.seconds_per_step:11.1f}"
        )
    print(f"({task.quality_name}: {arrow} is better; same seed, data, steps and optimizer for all)")


def _parameters_in_use(result: Run) -> int:
    total = sum(p.numel() for p in result.model.parameters())
    if result.sparse is None:
        return total
    return total - sum(w.counts.backward - w.counts.forward for w in result.sparse.weights.values())
