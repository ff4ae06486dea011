"""Peak resident memory of training steps, measured in a process of their own.

Run as a program it does the work and prints what it measured; `measure_peak` starts it.
"""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
from pathlib import Path

import torch
from torch import nn

from topkast.bench.ratios import Pair
from topkast.convert import sparsify
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
    arguments = json.dumps({"inputs": inputs, "outputs": outputs, "tokens": tokens, "pair": pair})
    # With a fixed threshold glibc gives large blocks back as soon as they are free; by default it comes to
    # keep them, and the peak would depend on what was freed before.
    environment = {**os.environ, "MALLOC_MMAP_THRESHOLD_": "65536"}
    command = [sys.executable, "-m", "topkast.bench.peak", arguments]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"the process that measures peak memory failed: {done.stderr.strip()}")
    return json.loads(done.stdout)


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


def _main(inputs: int, outputs: int, tokens: int, pair: Pair | None) -> dict[str, int]:
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


if __name__ == "__main__":
    print(json.dumps(_main(**json.loads(sys.argv[1]))))
