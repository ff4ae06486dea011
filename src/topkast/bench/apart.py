"""Memory, and layers too large to be dense, measured in a process of its own.

Run as a program it does the work and prints what it measured; `measure_peak` and `measure_scale` start it.
"""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import nn

from topkast.bench.ratios import Pair, sparsities
from topkast.convert import Handle, sparsify
from topkast.kernels.machine import resident
from topkast.methods import TopKAST

_CLEAR = Path("/proc/self/clear_refs")


def why_not() -> str | None:
    """Why peaks cannot be measured here, or None."""
    if not os.access("/proc/self/status", os.R_OK) or not os.access(_CLEAR, os.W_OK):
        return "needs Linux's /proc/self/status and clear_refs"
    return None


def measure_peak(inputs: int, outputs: int, tokens: int, pair: Pair | None) -> dict[str, int]:
    """Growth of resident memory in bytes, at most, for a Linear layer with Adam; dense without a pair.

    A sparse one is drawn, with an implicit reservoir.

    Returns:
        "building": while the layer is made. "training": over two steps and a refresh, layer included, after
        whatever building alone needed is gone.
    """
    arguments = {"inputs": inputs, "outputs": outputs, "tokens": tokens, "pair": pair}
    # With a fixed threshold glibc gives large blocks back as soon as they are free; by default it comes to
    # keep them, and the peak would depend on what was freed before.
    return _apart("peak", arguments, {"MALLOC_MMAP_THRESHOLD_": "65536"})


def _reset_peak() -> None:
    gc.collect()
    _CLEAR.write_text("5")


def _build(inputs: int, outputs: int, pair: Pair | None) -> tuple[nn.Module, torch.optim.Optimizer]:
    with torch.device("cpu" if pair is None else "meta"):
        model = nn.Sequential(nn.Linear(inputs, outputs, bias=False))
    method = None if pair is None else TopKAST(*pair, refresh_every=2)
    handle = None if method is None else sparsify(model, method, reservoir="implicit", seed=0)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
    if handle is not None:
        handle.attach(optimizer)
    return model, optimizer


def _train(model: nn.Module, optimizer: torch.optim.Optimizer, x: torch.Tensor) -> None:
    for _ in range(2):  # Adam makes its state in the first
        model(x).square().mean().backward()
        optimizer.step()


def _peak(inputs: int, outputs: int, tokens: int, pair: Pair | None) -> dict[str, int]:
    torch.manual_seed(0)
    # A layer that is small, but not too small for the same engine: loads all code, starts the threads.
    _train(*_build(128, 128, pair), torch.randn(8, 128))
    x = torch.randn(tokens, inputs)
    _reset_peak()
    before = resident("VmRSS")
    model, optimizer = _build(inputs, outputs, pair)
    building = resident("VmHWM") - before
    _reset_peak()
    _train(model, optimizer, x)
    return {"building": building, "training": resident("VmHWM") - before}


# Steps after the last exchange whose refreshes are timed; in a run a hundred follow each other.
_LATER = 20


def measure_scale(
    inputs: int, outputs: int, pair: Pair, *, steps: int, init: str | None = None
) -> dict[str, Any]:
    """Trains a Linear layer on 64 tokens with Adam and the penalty, each step followed by all choices.

    That is a refresh and an exchange. With no steps there are only exchanges, each after 5 % of B were set to
    zero.

    Args:
        inputs, outputs, pair: Of the layer.
        steps: How many.
        init: Initial distribution; None is torch's own.

    Returns:
        Seconds, each the median: "build", "step" (without choosing sets), "refresh" (A within B, right after
        an exchange, when most of it moves), "later" (refreshes of further steps), "exchange", "plan"
        (building the new one). "flipped" and "exchanged" are elements that the last ones moved. "peak"
        is the resident memory of the whole process in bytes, at most. Then sizes, and "memory" as
        `Handle.memory()` has it.
    """
    arguments = {"inputs": inputs, "outputs": outputs, "pair": pair, "steps": steps, "init": init}
    return _apart("scale", arguments)


def _timed(work: Callable[[], Any]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def _scale(inputs: int, outputs: int, pair: Pair, steps: int, init: str | None) -> dict[str, Any]:
    torch.manual_seed(0)
    with torch.device("meta"):
        model = nn.Sequential(nn.Linear(inputs, outputs, bias=False))
    made: list[Handle] = []
    method = TopKAST(*pair, refresh_every=2**40)  # sets are chosen below
    options: dict[str, Any] = {"reservoir": "implicit", "seed": 0, "engine": "native", "init": init}
    build = _timed(lambda: made.append(sparsify(model, method, **options)))
    handle = made[0]
    weight = handle.weights["0"]
    optimizer = handle.attach(torch.optim.Adam(model.parameters(), lr=1e-3))
    x = torch.randn(64, inputs)

    def step() -> None:
        (model(x).square().mean() + 1e-4 * handle.penalty()).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)

    def refresh() -> None:
        chosen = weight.choose_active()
        assert chosen is not None
        flipped.append(chosen[0].numel())
        weight.flip(chosen[0])

    times: dict[str, list[float]] = {"step": [], "refresh": [], "exchange": [], "plan": [], "later": []}
    flipped: list[int] = []
    for _ in range(steps or 5):
        if steps:
            times["step"].append(_timed(step))
            times["refresh"].append(_timed(refresh))
        else:
            with torch.no_grad():
                weight.values[torch.rand(weight.values.numel()) < 0.05] = 0
        times["exchange"].append(_timed(handle.refresh))
        if steps:
            times["plan"].append(_timed(lambda: model(x[:1])))  # the first product after it
    peak = resident("VmHWM")
    for _ in range(_LATER if steps else 0):
        step()
        times["later"].append(_timed(refresh))
    return {
        "inputs": inputs,
        "outputs": outputs,
        **sparsities(pair),
        "init": init or "torch's own",
        "numel": weight.numel(),
        "backward": weight.counts.backward,
        "returned": weight.reservoir.get_buffer("returned_values").numel(),
        "flipped": flipped[-1] if flipped else None,
        "exchanged": int(weight.exchanged),
        "build": build,
        **{name: median(taken) if taken else None for name, taken in times.items()},
        "peak": peak,
        "memory": handle.memory().layers["0"],
    }


def _apart(what: str, arguments: dict[str, Any], settings: dict[str, str] | None = None) -> Any:
    """What this file measures when it is run as a program, with some more environment."""
    command = [sys.executable, "-m", "topkast.bench.apart", what, json.dumps(arguments)]
    environment = {**os.environ, **(settings or {})}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"the process that measures {what} failed: {done.stderr.strip()}")
    return json.loads(done.stdout)


if __name__ == "__main__":
    measure = {"peak": _peak, "scale": _scale}[sys.argv[1]]
    print(json.dumps(measure(**json.loads(sys.argv[2]))))
