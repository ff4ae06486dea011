"""From a trained sparse network to where it is used: torch alone, a graph, and numpy alone.

python examples/deploy.py
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import Tensor, nn

import topkast
from topkast.convert.compressed import compress
from topkast.convert.read_compressed import read


def trained() -> nn.Sequential:
    """A network that has learned to sort eight numbers by size: the rank of each."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 8))
    sparse = topkast.sparsify(model, topkast.TopKAST(0.9, 0.8, refresh_every=10), seed=0)
    optimizer = sparse.attach(torch.optim.Adam(model.parameters(), lr=3e-3))
    for _ in range(300):
        x = torch.randn(128, 8)
        F.mse_loss(model(x), ranks(x)).backward()
        optimizer.step()
        optimizer.zero_grad()
    return model.eval()


def ranks(x: Tensor) -> Tensor:
    return x.argsort(-1).argsort(-1).float()


def with_numpy(weights: dict[str, np.ndarray], x: np.ndarray) -> np.ndarray:
    """The same network in three lines, for a machine without torch."""
    for layer in (0, 2):
        x = np.maximum(x @ weights[f"{layer}.weight"].T + weights[f"{layer}.bias"], 0)
    return x @ weights["4.weight"].T + weights["4.bias"]


def main() -> None:
    model = trained()
    x = torch.randn(5, 8)
    expected = model(x)

    dense = topkast.densify(model)
    print("torch alone:", {type(module).__name__ for module in dense})
    program = torch.export.export(dense, (x,), dynamic_shapes=({0: torch.export.Dim.DYNAMIC},))
    print(f"as a graph: differs by {(program.module()(x) - expected).abs().max():.1e}")

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.safetensors"
        small = compress(model)
        save_file(small.tensors, path, small.metadata)
        numbers = sum(p.nbytes for p in dense.parameters())
        print(f"compressed: {path.stat().st_size:,} bytes of {numbers:,}")
        found = with_numpy(read(path), x.numpy())
    print(f"numpy alone: differs by {np.abs(found - expected.detach().numpy()).max():.1e}")


if __name__ == "__main__":
    main()
