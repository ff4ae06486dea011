"""Where the time of a training step goes: products, attention, the rest, the optimizer, refreshing."""

from __future__ import annotations

import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

PARTS = (
    "sparse products",
    "dense products and attention",
    "softmax, norms and loss",
    "elementwise, copies and the rest",
    "optimizer",
    "refresh",
)
# Beginnings of the names by which torch's profiler knows operations.
_NAMES: dict[str, tuple[str, ...]] = {
    "sparse products": ("_Multiply", "topkast::"),
    "dense products and attention": (
        *("aten::addmm", "aten::mm", "aten::bmm", "aten::baddbmm", "aten::matmul", "aten::linear"),
        *("aten::mkldnn", "aten::convolution", "aten::_convolution", "aten::thnn_conv", "aten::_slow_conv"),
        *("aten::_scaled_dot_product", "aten::scaled_dot_product", "aten::_flash", "aten::einsum"),
    ),
    "softmax, norms and loss": (
        *("aten::_softmax", "aten::softmax", "aten::_log_softmax", "aten::logsumexp", "aten::nll_loss"),
        *("aten::native_layer_norm", "aten::native_batch_norm", "aten::batch_norm", "aten::_batch_norm"),
    ),
}


def part_of(name: str) -> str:
    """The part of a step that an operation belongs to."""
    for part, beginnings in _NAMES.items():
        if name.startswith(beginnings):
            return part
    return "elementwise, copies and the rest"


def profile_step(
    objective: Callable[[], Tensor], optimizer: torch.optim.Optimizer, repeats: int = 5
) -> dict[str, float]:
    """Seconds of a step by part, median over several; the optimizer's with whatever hangs on its steps.

    Forward and backward pass are measured by torch's profiler, which slows them down a little: their parts
    are scaled to the time that they take without it.
    """
    rounds: list[dict[str, float]] = []
    for i in range(repeats + 1):
        passes = _timed(lambda: objective().backward())
        steps = _timed(optimizer.step)
        optimizer.zero_grad()
        with _unannounced(), torch.autograd.profiler.profile(use_kineto=False) as profiler:
            objective().backward()
        optimizer.zero_grad()
        if i:  # the first one warms up
            rounds.append({**_scaled(_parts(profiler), passes), "optimizer": steps})
    return {part: statistics.median(r.get(part, 0.0) for r in rounds) for part in PARTS}


@contextmanager
def _unannounced() -> Iterator[None]:
    """Standard error goes nowhere: the profiler writes two lines there each time, and no setting stops it."""
    sys.stderr.flush()
    before, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 2)
        yield
    finally:
        os.dup2(before, 2)
        os.close(before)
        os.close(nowhere)


def _timed(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def _parts(profiler: Any) -> dict[str, float]:
    found: dict[str, float] = dict.fromkeys(PARTS, 0.0)
    for event in profiler.key_averages():
        found[part_of(event.key)] += event.self_cpu_time_total
    return found


def _scaled(parts: Mapping[str, float], seconds: float) -> dict[str, float]:
    total = sum(parts.values()) or 1.0
    return {part: seconds * amount / total for part, amount in parts.items()}
