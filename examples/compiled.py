"""torch.compile: one graph for a run with refreshes, in bf16, clipped and accumulated, beside the eager run.

python examples/compiled.py                     # without code generation: quick
python examples/compiled.py --backend inductor  # as torch.compile does it by default; needs g++
"""

from __future__ import annotations

import argparse
import time

import torch
import torch._dynamo
import torch.nn.functional as F
from torch import nn

import topkast
from topkast.data.plain_text import stdlib_text
from topkast.models import Decoder

WINDOW = 32


def train(backend: str | None, steps: int = 20) -> tuple[float, topkast.Handle]:
    """The last loss, and the sparse model."""
    torch.manual_seed(0)
    text = stdlib_text(limit=100_000)[0].long()
    model = Decoder(num_symbols=256, width=64, depth=2, num_heads=2, window=WINDOW)
    sparse = topkast.sparsify(model, topkast.TopKAST(0.9, 0.8, refresh_every=2), engine="native", seed=0)
    optimizer = sparse.attach(torch.optim.SGD(model.parameters(), lr=0.3, momentum=0.9))
    called = model if backend is None else torch.compile(model, backend=backend, fullgraph=True)
    for _ in range(steps):
        for _ in range(2):
            starts = torch.randint(len(text) - WINDOW - 1, (8, 1))
            rows = text[starts + torch.arange(WINDOW + 1)]
            with torch.autocast("cpu", dtype=torch.bfloat16):
                logits = called(rows[:, :-1])
            loss = F.cross_entropy(logits.flatten(0, 1).float(), rows[:, 1:].flatten())
            (loss / 2 + 5e-5 * sparse.penalty()).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    return loss.item(), sparse


def main(backend: str) -> None:
    eager_loss, eager = train(None)
    started = time.perf_counter()
    with torch._dynamo.config.patch(error_on_recompile=True):  # a second compilation would be an error
        loss, sparse = train(backend)
    print(
        f"eager {eager_loss:.4f}, compiled {loss:.4f} ({time.perf_counter() - started:.0f} s with {backend})"
    )
    pairs = list(zip(eager.weights.values(), sparse.weights.values(), strict=True))
    same = sum(int(torch.isin(b.indices, a.indices).sum()) for a, b in pairs)
    total = sum(b.indices.numel() for _, b in pairs)
    print(f"{same:,} of {total:,} elements of B are the same after 10 refreshes, in one graph")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--backend", default="aot_eager")
    main(parser.parse_args().backend)
