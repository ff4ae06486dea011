"""What the clocks of Top-KAST cost and bring, on real text; draws docs/clocks.svg.

Trains the decoder of `topkast train` with several pairs (refresh, exchange): the steps from one choice of A
within B to the next, and from one choice of B from all of θ to the next. A fixed random mask is beside them.

    python examples/two_clocks.py --steps 400 --plot docs/clocks.svg      # needs topkast[plots]
"""

from __future__ import annotations

import argparse
import math
import time
from pathlib import Path
from statistics import median

import torch

import topkast
from topkast.train.text_tasks import TextTask

CLOCKS = ((1, 1), (1, 10), (1, 100), (10, 10), (10, 100), (100, 100))
SPARSITIES = (0.9, 0.8)
FIXED = "fixed mask"


def methods() -> dict[str, topkast.Method]:
    found: dict[str, topkast.Method] = {
        str(clocks): topkast.TopKAST(*SPARSITIES, refresh_every=clocks[0], exchange_every=clocks[1])
        for clocks in CLOCKS
    }
    return {**found, FIXED: topkast.Static(SPARSITIES[0])}


def run(name: str, method: topkast.Method, steps: int, lr: float) -> tuple[float, float]:
    """Seconds per step and held-out bits per byte, at the end of a run with AdamW and half a cosine."""
    torch.manual_seed(0)
    task = TextTask(batch=8)
    model = task.network().build()
    sparse = topkast.sparsify(model, method, seed=0)
    optimizer = sparse.attach(torch.optim.AdamW(sparse.param_groups(weight_decay=0.0), lr=lr))
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min(1, 20 * (step + 1) / steps) * (1 + math.cos(math.pi * step / steps)) / 2
    )
    generator = torch.Generator().manual_seed(0)
    hundreds, start = [], time.perf_counter()
    for step in range(1, steps + 1):
        (task.loss(model, step, generator) + 1e-4 * sparse.penalty()).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        if step % 100 == 0 or step == steps:  # so that every part has its exchange
            now = time.perf_counter()
            hundreds.append((now - start) / (step % 100 or 100))
            start = now
    seconds, bits = median(hundreds), task.quality(model)
    print(f"{name:12} {1000 * seconds:6.1f} ms a step, {bits:.3f} {task.quality_name}", flush=True)
    return seconds, bits


def draw(found: dict[str, tuple[float, float]], target: Path) -> None:
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(6.4, 3.8), layout="constrained")
    for name, (seconds, bits) in found.items():
        ours = name == "(1, 100)"
        color = "tab:blue" if ours else "grey" if name == FIXED else "tab:orange"
        axes.plot([1000 * seconds], [bits], "o", color=color, markersize=9 if ours else 6)
        beside = (-24, -18) if ours else (7, 4)  # its neighbours are close
        axes.annotate(name, (1000 * seconds, bits), xytext=beside, textcoords="offset points")
    axes.set(xlabel="time of a step, ms", ylabel="held-out bits per byte (lower is better)")
    axes.margins(x=0.16, y=0.12)
    axes.set_title("(refresh, exchange): steps from one choice of A, and of B, to the next", fontsize=10)
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(target)


def main(o: argparse.Namespace) -> None:
    found = {name: run(name, method, o.steps, o.lr) for name, method in methods().items()}
    if o.plot is not None:
        draw(found, o.plot)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--lr", type=float, default=4e-3)
    parser.add_argument("--plot", type=Path)
    main(parser.parse_args())
