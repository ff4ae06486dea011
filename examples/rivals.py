"""One network, six methods: what each takes for training and what it reaches, on handwritten digits.

    python examples/rivals.py

`examples/compare_methods.py` is the long form of it, with seeds and all methods, on larger images.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

import topkast
from topkast.data.images import digits

STEPS = 300
METHODS: dict[str, topkast.Method] = {
    "dense": topkast.Dense(),
    "static": topkast.Static(0.95),
    "SET": topkast.SET(0.95, update_every=20),
    "RigL": topkast.RigL(0.95, update_every=20, t_end=200),
    "pruning": topkast.Pruning(0.95, begin=20, end=200, update_every=20),
    "Top-KAST": topkast.TopKAST(0.95, 0.9, refresh_every=10),
}


def run(method: topkast.Method) -> tuple[float, float]:
    """Held-out accuracy, and the FLOPs of training as a share of dense training."""
    torch.manual_seed(0)
    (images, labels), (held_out, answers) = digits()
    model = nn.Sequential(
        nn.Flatten(), nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10)
    )
    sparse = topkast.sparsify(model, method, keep_dense="last", seed=0)
    optimizer = sparse.attach(torch.optim.SGD(sparse.param_groups(weight_decay=0.0), lr=0.1, momentum=0.9))
    for _ in range(STEPS):
        batch = torch.randint(len(images), (64,))
        loss = F.cross_entropy(model(images[batch]), labels[batch]) + 1e-4 * sparse.penalty()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    cost = sparse.flops(images[:64], steps=STEPS).training_fraction
    with torch.no_grad():
        return (model(held_out).argmax(1) == answers).double().mean().item(), cost


def main() -> None:
    print(f"{'':10}{'accuracy':>10}{'training FLOPs':>18}")
    for name, method in METHODS.items():
        accuracy, cost = run(method)
        print(f"{name:10}{accuracy:>10.1%}{cost:>18.1%}")


if __name__ == "__main__":
    main()
