"""A layer too large to be dense: time of a refresh and peak memory, measured in a process of its own.

Run as a program it does the work and prints what it measured; `measure_scale` starts it.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from statistics import median
from typing import Any

import torch
from torch import nn

from topkast.bench.ratios import Pair
from topkast.convert import Handle, sparsify
from topkast.core.initial import Normal
from topkast.kernels.machine import resident
from topkast.methods import TopKAST


def measure_scale(inputs: int, outputs: int, pair: Pair, *, steps: int) -> dict[str, Any]:
    """Trains a Linear layer of 64 tokens with Adam for some steps, each followed by a refresh; or, with no
    steps, only refreshes it, each time after 5 % of B were set to zero.

    Returns:
        Seconds: "build", "step" (without refresh), "refresh", "plan" (building the new one), each the median;
        "peak": resident memory of the whole process in bytes, at most; sizes; "memory": `Handle.memory()`.
    """
    arguments = json.dumps({"inputs": inputs, "outputs": outputs, "pair": pair, "steps": steps})
    command = [sys.executable, "-m", "topkast.bench.scale", arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"the process that measures a large layer failed: {done.stderr.strip()}")
    return json.loads(done.stdout)


def _timed(work: Callable[[], Any]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def _main(inputs: int, outputs: int, pair: Pair, steps: int) -> dict[str, Any]:
    torch.manual_seed(0)
    with torch.device("meta"):
        model = nn.Sequential(nn.Linear(inputs, outputs, bias=False))
    made: list[Handle] = []
    method = TopKAST(*pair, refresh_every=2**40)  # refreshes are called for below
    options = {"reservoir": "implicit", "seed": 0, "engine": "native", "init": Normal(0.02)}
    build = _timed(lambda: made.append(sparsify(model, method, **options)))  # pyright: ignore
    handle = made[0]
    weight = handle.weights["0"]
    optimizer = handle.attach(torch.optim.Adam(model.parameters(), lr=1e-3))
    x = torch.randn(64, inputs)

    def step() -> None:
        model(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)

    step_times, refresh_times, plan_times = [], [], []
    for _ in range(steps or 5):
        if steps:
            step_times.append(_timed(step))
        else:
            with torch.no_grad():
                weight.values[torch.rand(weight.values.numel()) < 0.05] = 0
        refresh_times.append(_timed(handle.refresh))
        if steps:
            plan_times.append(_timed(lambda: model(x[:1])))  # the first product after it
    return {
        "inputs": inputs,
        "outputs": outputs,
        "forward_sparsity": pair[0],
        "backward_sparsity": pair[1],
        "numel": weight.numel(),
        "backward": weight.counts.backward,
        "returned": weight.reservoir.returned_positions.numel(),  # pyright: ignore
        "build": build,
        "step": median(step_times) if step_times else None,
        "refresh": median(refresh_times),
        "plan": median(plan_times) if plan_times else None,
        "peak": resident("VmHWM"),
        "memory": handle.memory().layers["0"],
    }


if __name__ == "__main__":
    print(json.dumps(_main(**json.loads(sys.argv[1]))))
