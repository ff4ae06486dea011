"""A loop of your own: handwritten digits with 2 % of the hidden weights, learned and at random.

    python examples/own_loop.py

Top-KAST and a fixed random mask of the same size, on the same batches; needs scikit-learn for the images.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

import topkast
from topkast.data.images import digits


def train(method: topkast.Method, steps: int = 400) -> float:
    """The share of held-out images that is recognised."""
    torch.manual_seed(0)
    (x, y), (held_out, answers) = digits()
    model = nn.Sequential(
        nn.Flatten(), nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10)
    )
    sparse = topkast.sparsify(model, method, keep_dense="last", seed=0)
    optimizer = sparse.attach(torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9))
    for _ in range(steps):
        batch = torch.randint(len(x), (64,))
        loss = F.cross_entropy(model(x[batch]), y[batch]) + 1e-4 * sparse.penalty()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    with torch.no_grad():
        return (model(held_out).argmax(1) == answers).double().mean().item()


def main() -> None:
    learned = train(topkast.TopKAST(0.98, 0.95))
    fixed = train(topkast.Static(0.98))
    print(f"Top-KAST, 2 % of the hidden weights: {learned:.1%} of held-out digits")
    print(f"a fixed random mask of the same size: {fixed:.1%}")


if __name__ == "__main__":
    main()
