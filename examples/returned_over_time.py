"""How much an implicit reservoir comes to hold over a training run, on real text; draws docs/returned.svg.

Elements that leave B are written down (position and value). How many there are depends on how much B changes:
on the sparsity, the learning rate, and the exploration penalty.

    python examples/returned_over_time.py --steps 2000 --plot docs/returned.svg      # needs topkast[plots]
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch

import topkast
from topkast.train.text_tasks import TextTask

PAIRS = ((0.9, 0.8), (0.95, 0.9), (0.98, 0.95))


def bytes_per_dense_element(handle: topkast.Handle) -> float:
    held = sum(b.nbytes for w in handle.weights.values() for b in w.reservoir.buffers())
    return held / sum(w.numel() for w in handle.weights.values())


def run(pair: tuple[float, float], steps: int, every: int, penalty: float) -> list[tuple[int, float, float]]:
    """(step, share of C that has been in B, bytes of the reservoir per dense element)."""
    task = TextTask()
    with torch.device("meta"):
        model = task.network().build()
    method = topkast.TopKAST(*pair, refresh_every=10)
    skip = ["embedding", "head"]
    handle = topkast.sparsify(model, method, skip=skip, reservoir="implicit", seed=0, init="kaiming_normal")
    optimizer = handle.attach(torch.optim.Adam(model.parameters(), lr=5e-4))
    generator = torch.Generator().manual_seed(0)
    curve = []
    for step in range(1, steps + 1):
        loss = task.loss(model, step, generator) + penalty * handle.penalty()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if step % every == 0:
            stats = handle.stats().values()
            used = sum(s.reservoir_used * (s.numel - s.backward) for s in stats)
            curve.append(
                (step, used / sum(s.numel - s.backward for s in stats), bytes_per_dense_element(handle))
            )
    print(
        f"{pair[0]:.0%}/{pair[1]:.0%}, penalty {penalty:g}: {task.quality(model):.3f} {task.quality_name}; ",
        end="",
    )
    print(f"{curve[-1][1]:.1%} of C has been in B, {curve[-1][2]:.2f} bytes per dense element", flush=True)
    return curve


def draw(curves: dict[str, list[tuple[int, float, float]]], target: Path) -> None:
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, 2, figsize=(10, 3.6), layout="constrained")
    for label, curve in curves.items():
        steps, used, held = zip(*curve, strict=True)
        axes[0].plot(steps, [100 * share for share in used], label=label)
        axes[1].plot(steps, held, label=label)
    axes[0].set(xlabel="step", ylabel="% of the initial C that has been in B", ylim=(0, None))
    axes[1].set(xlabel="step", ylabel="bytes of the reservoir per dense element", ylim=(0, 5.6))
    axes[1].axhline(5, color="grey", linestyle=":")
    axes[1].annotate("stored reservoir", (0.02, 5.05), xycoords=("axes fraction", "data"), color="grey")
    axes[0].legend(title="forward/backward sparsity")
    for axis in axes:
        axis.spines[["top", "right"]].set_visible(False)
    figure.savefig(target)


def main(o: argparse.Namespace) -> None:
    every = max(1, o.steps // 50)
    curves = {f"{100 * p[0]:.0f}/{100 * p[1]:.0f}": run(p, o.steps, every, 1e-4) for p in PAIRS}
    curves["90/80, no penalty"] = run(PAIRS[0], o.steps, every, 0.0)
    if o.plot is not None:
        draw(curves, o.plot)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--plot", type=Path)
    main(parser.parse_args())
