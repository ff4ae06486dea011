"""`topkast bench`: one layer's forward and backward pass against dense PyTorch, in one run."""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from topkast.convert import densify, sparsify
from topkast.kernels.engines import ENGINES
from topkast.methods import TopKAST

_SPARSITIES = ((0.8, 0.5), (0.9, 0.8), (0.95, 0.9), (0.98, 0.95))
# Convolutions of ResNet-50: inputs, outputs, kernel, stride, height and width of the input.
_RESNET50 = (
    (64, 64, 1, 1, 56),
    (64, 64, 3, 1, 56),
    (64, 256, 1, 1, 56),
    (256, 128, 1, 1, 56),
    (128, 128, 3, 2, 56),
    (128, 512, 1, 1, 28),
    (256, 256, 3, 1, 14),
    (1024, 256, 1, 1, 14),
    (512, 512, 3, 1, 7),
    (2048, 512, 1, 1, 7),
)


@dataclass(frozen=True)
class _Case:
    """A dense layer and an input for it."""

    name: str
    build: Callable[[], nn.Module]
    shape: tuple[int, ...]


def add_parser(commands: Any) -> None:
    parser = commands.add_parser("bench", help="time the engines against dense PyTorch")
    parser.add_argument("--suite", choices=("linear", "conv"), default="linear")
    parser.add_argument("--tokens", type=int, default=512, help="of the linear suite")
    parser.add_argument("--inputs", type=int, default=1024)
    parser.add_argument("--outputs", type=int, default=1024)
    parser.add_argument("--batch", type=int, default=16, help="of the conv suite (ResNet-50's layers)")
    parser.add_argument("--repeats", type=int, default=9)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> None:
    for name in ("tokens", "inputs", "outputs", "batch", "repeats"):
        if getattr(options, name) < 1:
            raise ValueError(f"--{name} must be at least 1, got {getattr(options, name)}")
    print(f"float32, {torch.get_num_threads()} threads, torch {torch.__version__}")
    print("forward + backward: how many times faster than dense (below 1: slower)\n")
    if options.suite == "conv":
        _conv_suite(options.batch, options.repeats)
    else:
        _linear_suite(options)


def _linear_suite(options: argparse.Namespace) -> None:
    inputs, outputs, tokens = options.inputs, options.outputs, options.tokens
    case = _Case("linear", lambda: nn.Linear(inputs, outputs), (tokens, inputs))
    print(f"Linear {inputs} → {outputs}, {tokens} tokens")
    print(f"{'forward/backward':>18}  {'ideal':>6}  " + "  ".join(f"{name:>8}" for name in ENGINES))
    for forward, backward in _SPARSITIES:
        ideal = 3 / (2 * (1 - forward) + (1 - backward))
        ratios = [_ratio(_times(case, forward, backward, name, options.repeats)) for name in ENGINES]
        cells = "  ".join(f"{ratio:7.2f}×" for ratio in ratios)
        print(f"{forward:>9.0%}/{backward:<8.0%}  {ideal:5.1f}×  {cells}", flush=True)


def _conv_suite(batch: int, repeats: int) -> None:
    header = "  ".join(f"{f'{f:.0%}/{b:.0%}':>8}" for f, b in _SPARSITIES)
    print(f"{'Conv2d of ResNet-50, native, batch ' + str(batch):<40}  {header}")
    totals = [[0.0, 0.0] for _ in _SPARSITIES]
    for inputs, outputs, kernel, stride, size in _RESNET50:
        case = _Case(
            f"{inputs} → {outputs}, {kernel}×{kernel}, stride {stride}, {size}×{size}",
            lambda i=inputs, o=outputs, k=kernel, s=stride: nn.Conv2d(i, o, k, s, k // 2, bias=False),
            (batch, inputs, size, size),
        )
        cells = []
        for (forward, backward), total in zip(_SPARSITIES, totals, strict=True):
            times = _times(case, forward, backward, "native", repeats)
            total[0] += times[0]
            total[1] += times[1]
            cells.append(f"{_ratio(times):7.2f}×")
        print(f"{case.name:<40}  " + "  ".join(cells), flush=True)
    print(f"{'sum of times':<40}  " + "  ".join(f"{_ratio((t[0], t[1])):7.2f}×" for t in totals))


def _ratio(times: tuple[float, float]) -> float:
    return times[0] / times[1]


def _times(case: _Case, forward: float, backward: float, engine: str, repeats: int) -> tuple[float, float]:
    """Median seconds of the dense and the sparse layer, measured in turns; the result is checked first."""
    torch.manual_seed(0)
    dense = case.build()
    model = nn.Sequential(dense)
    x = torch.randn(case.shape, requires_grad=True)
    upstream = torch.randn_like(dense(x))
    sparsify(model, TopKAST(forward, backward), engine=engine)
    torch.testing.assert_close(model(x), densify(model)(x), rtol=1e-4, atol=1e-4)
    times: tuple[list[float], list[float]] = ([], [])
    for _ in range(repeats):
        for module, record in ((dense, times[0]), (model, times[1])):
            record.append(_seconds(module, x, upstream))
    return statistics.median(times[0]), statistics.median(times[1])


def _seconds(module: nn.Module, x: Tensor, upstream: Tensor) -> float:
    inputs = (x, *module.parameters())
    started = time.perf_counter()
    torch.autograd.grad(module(x), inputs, upstream)
    return time.perf_counter() - started
