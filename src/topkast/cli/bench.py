"""`topkast bench`: a Linear layer's forward and backward pass against dense PyTorch, in one run."""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from topkast.convert import densify, sparsify
from topkast.kernels.engines import ENGINES
from topkast.methods import TopKAST

_SPARSITIES = ((0.8, 0.5), (0.9, 0.8), (0.95, 0.9), (0.98, 0.95))


def add_parser(commands: Any) -> None:
    parser = commands.add_parser("bench", help="time the engines against dense PyTorch")
    parser.add_argument("--tokens", type=int, default=512)
    parser.add_argument("--inputs", type=int, default=1024)
    parser.add_argument("--outputs", type=int, default=1024)
    parser.add_argument("--repeats", type=int, default=9)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> None:
    for name in ("tokens", "inputs", "outputs", "repeats"):
        if getattr(options, name) < 1:
            raise ValueError(f"--{name} must be at least 1, got {getattr(options, name)}")
    print(
        f"Linear {options.inputs} → {options.outputs}, {options.tokens} tokens, float32, "
        f"{torch.get_num_threads()} threads, torch {torch.__version__}"
    )
    print("forward + backward: how many times faster than dense (below 1: slower)\n")
    print(f"{'forward/backward':>18}  {'ideal':>6}  " + "  ".join(f"{name:>8}" for name in ENGINES))
    for forward, backward in _SPARSITIES:
        ideal = 3 / (2 * (1 - forward) + (1 - backward))
        ratios = [_ratio(options, forward, backward, name) for name in ENGINES]
        cells = "  ".join(f"{ratio:7.2f}×" for ratio in ratios)
        print(f"{forward:>9.0%}/{backward:<8.0%}  {ideal:5.1f}×  {cells}")


def _ratio(options: argparse.Namespace, forward: float, backward: float, engine: str) -> float:
    """Dense time over sparse time, measured in turns; the sparse result is checked first."""
    torch.manual_seed(0)
    dense = nn.Linear(options.inputs, options.outputs)
    model = nn.Sequential(dense)
    x = torch.randn(options.tokens, options.inputs, requires_grad=True)
    upstream = torch.randn(options.tokens, options.outputs)
    sparsify(model, TopKAST(forward, backward), engine=engine)
    torch.testing.assert_close(model(x), densify(model)(x), rtol=1e-4, atol=1e-4)
    times: tuple[list[float], list[float]] = ([], [])
    for _ in range(options.repeats):
        for module, record in ((dense, times[0]), (model, times[1])):
            inputs = (x, *module.parameters())
            record.append(_seconds(lambda m=module, i=inputs: torch.autograd.grad(m(x), i, upstream)))
    return statistics.median(times[0]) / statistics.median(times[1])


def _seconds(work: Callable[[], Any]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started
