"""What a step of a weight-sparse decoder costs: topkast, dense, and exact Top-K by masks.

The masked network is what one writes without a sparse library: dense weights, dense gradients, Adam on all
of them, and after every step the Top-K of each matrix, with zeros elsewhere.

    python examples/weight_sparse_cost.py --width 2048 --sparsity 0.999
"""

from __future__ import annotations

import argparse
import statistics
import time

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import topkast
from topkast.models import Decoder

WINDOW = 128


def make(width: int, depth: int) -> Decoder:
    return Decoder(256, width, depth, max(1, width // 64), WINDOW)


def matrices(model: nn.Module) -> list[Tensor]:
    layers = (m for m in model.modules() if isinstance(m, nn.Linear | nn.Embedding))
    return [layer.weight for layer in layers]


@torch.no_grad()
def keep_top(model: nn.Module, sparsity: float) -> None:
    """Exact Top-K of every matrix, by torch."""
    for weight in matrices(model):
        flat = weight.flatten()
        kept = flat.abs().topk(round((1 - sparsity) * flat.numel()), sorted=False).indices
        weight.copy_(torch.zeros_like(flat).index_copy_(0, kept, flat[kept]).view_as(weight))


class Contender:
    """A network with its optimizer; `step` returns the loss."""

    def __init__(self, kind: str, options: argparse.Namespace) -> None:
        torch.manual_seed(0)
        self.kind, self.sparsity = kind, options.sparsity
        self.sparse: topkast.Handle | None = None
        if kind == "topkast":
            with torch.device("meta"):
                self.model = make(options.width, options.depth)
            method = topkast.TopKAST.under_adam(options.sparsity, 2 * options.sparsity - 1)
            self.sparse = topkast.sparsify(self.model, method, reservoir="implicit", seed=0)
            self.optimizer = self.sparse.attach(torch.optim.Adam(self.model.parameters(), lr=1e-3))
        else:
            self.model = make(options.width, options.depth)
            self.optimizer = torch.optim.Adam(self.model.parameters(), lr=1e-3)
            if kind == "masks":
                keep_top(self.model, self.sparsity)

    def step(self, symbols: Tensor) -> float:
        logits = self.model(symbols[:, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1), symbols[:, 1:].flatten())
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        if self.kind == "masks":
            keep_top(self.model, self.sparsity)
        return float(loss.detach())

    def num_used(self) -> int:
        """Weights that are not zero in the forward pass."""
        if self.kind == "topkast":
            assert self.sparse is not None
            return sum(weight.counts.forward for weight in self.sparse.weights.values())
        return sum(int(weight.count_nonzero()) for weight in matrices(self.model))


def main(options: argparse.Namespace) -> dict[str, float]:
    symbols = torch.randint(256, (options.batch, WINDOW + 1), generator=torch.Generator().manual_seed(1))
    contenders = {kind: Contender(kind, options) for kind in ("topkast", "dense", "masks")}
    times: dict[str, list[float]] = {kind: [] for kind in contenders}
    for turn in range(options.steps + 1):
        for kind, contender in contenders.items():
            started = time.perf_counter()
            contender.step(symbols)
            if turn:  # the first one warms up
                times[kind].append(time.perf_counter() - started)
    if contenders["topkast"].num_used() != contenders["masks"].num_used():
        raise RuntimeError("topkast and the masks keep different numbers of weights")
    medians = {kind: statistics.median(found) for kind, found in times.items()}
    print(f"width {options.width}, depth {options.depth}, {options.batch * WINDOW} tokens, ", end="")
    print(f"{options.sparsity:.1%} sparse, {torch.get_num_threads()} threads")
    for kind, seconds in medians.items():
        ratio = medians[kind] / medians["topkast"]
        print(f"{kind:8} {seconds * 1e3:8.0f} ms a step, {ratio:.1f} × topkast; ", end="")
        print(f"{contenders[kind].num_used():,} weights in use")
    return medians


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--width", type=int, default=2048)
    parser.add_argument("--depth", type=int, default=2)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--sparsity", type=float, default=0.999)
    parser.add_argument("--steps", type=int, default=5)
    return parser.parse_args(arguments)


if __name__ == "__main__":
    main(parse())
