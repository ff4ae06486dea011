"""Trains a language model whose dense form would not fit into this machine, on real text.

The network is built on the meta device, so its dense weights never exist; `reservoir="implicit"` keeps a key
in their place. By default it has 6.4 billion weights, which dense training with Adam would keep in 103 GB:

    python examples/bigger_than_memory.py               # on the sources of Python's standard library
    python examples/bigger_than_memory.py --text FILE   # on any file, byte by byte, its last tenth held out
"""

from __future__ import annotations

import argparse
import math
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import topkast
from topkast.data.plain_text import stdlib_text
from topkast.kernels.machine import resident
from topkast.models import Decoder


def read_text(path: Path | None) -> tuple[Tensor, Tensor]:
    """Training and held-out bytes."""
    if path is None:
        return stdlib_text()
    text = torch.frombuffer(bytearray(path.read_bytes()), dtype=torch.uint8)
    cut = len(text) * 9 // 10
    return text[:cut], text[cut:]


def loss_on(model: nn.Module, text: Tensor, starts: Tensor, window: int) -> Tensor:
    windows = text[starts[:, None] + torch.arange(window + 1)].long()
    return F.cross_entropy(model(windows[:, :-1]).flatten(0, 1), windows[:, 1:].flatten())


@torch.no_grad()
def bits_per_byte(model: nn.Module, text: Tensor, window: int) -> float:
    starts = torch.linspace(0, len(text) - window - 1, 16).long()
    losses = [loss_on(model, text, part, window) for part in starts.split(2)]
    return float(torch.stack(losses).mean()) / math.log(2)


def gigabytes(count: float) -> str:
    return f"{count / 1e9:.2f} GB"


def build(o: argparse.Namespace) -> tuple[nn.Module, topkast.Handle]:
    with torch.device("meta"):
        model = Decoder(
            num_symbols=256, width=o.width, depth=o.depth, num_heads=o.width // 128, window=o.window
        )
    method = topkast.TopKAST(o.forward_sparsity, o.backward_sparsity, refresh_every=o.refresh_every)
    handle = topkast.sparsify(
        model,
        method,
        skip=["embedding", "head"],
        reservoir="implicit",
        # Of a normal distribution the largest weights stand out, so that sets change a little at a time; of
        # torch's uniform one they are all alike, and a few steps would exchange half of them.
        init="kaiming_normal",
        engine="native",
        seed=0,
    )
    return model, handle


def main(o: argparse.Namespace) -> float:
    train, held_out = read_text(o.text)
    start = time.perf_counter()
    model, handle = build(o)
    numel = sum(weight.numel() for weight in handle.weights.values())
    updated = sum(weight.counts.backward for weight in handle.weights.values())
    print(f"{numel:,} weights, {updated:,} of them in B, drawn in {time.perf_counter() - start:.0f} s")
    optimizer = handle.attach(torch.optim.Adam(model.parameters(), lr=o.lr))
    generator = torch.Generator().manual_seed(0)
    first = bits_per_byte(model, held_out, o.window)
    print(f"step {0:4}: held-out {first:.3f} bits per byte", flush=True)
    last, steps, refreshes = first, [], []
    for step in range(1, o.steps + 1):
        for group in optimizer.param_groups:
            group["lr"] = o.lr * min(1.0, step / 20)  # a short warm-up
        start = time.perf_counter()
        starts = torch.randint(len(train) - o.window, (o.batch,), generator=generator)
        loss = loss_on(model, train, starts, o.window)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        memory = handle.memory()  # here, where Plans and gradients exist; a refresh drops the Plans
        optimizer.step()  # every `refresh_every` steps it refreshes the sets
        (refreshes if step % o.refresh_every == 0 else steps).append(time.perf_counter() - start)
        optimizer.zero_grad()
        if step % o.report_every == 0 or step == o.steps:
            last = bits_per_byte(model, held_out, o.window)
            seen = float(loss.detach()) / math.log(2)
            print(
                f"step {step:4}: held-out {last:.3f} bits per byte, training {seen:.3f}; "
                f"{gigabytes(resident('VmRSS'))} resident",
                flush=True,
            )
    used = sum(s.reservoir_used * (s.numel - s.backward) for s in handle.stats().values())
    step_time = sum(steps) / max(1, len(steps))
    print(f"\nheld-out {first:.3f} -> {last:.3f} bits per byte")
    print(f"dense, with gradients and Adam: {gigabytes(memory.dense)}; here: {gigabytes(memory.sparse)}")
    print(f"peak resident memory of this process, activations included: {gigabytes(resident('VmHWM'))}")
    print(f"a step takes {step_time:.2f} s", end="")
    if refreshes:
        print(f", a step with a refresh {sum(refreshes) / len(refreshes):.2f} s", end="")
    print(f"\n{used / (numel - updated):.3%} of C has been in B")
    return last


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--text", type=Path, help="a file to train on, as bytes")
    parser.add_argument("--width", type=int, default=8192, help="a multiple of 128")
    parser.add_argument("--depth", type=int, default=8)
    parser.add_argument("--window", type=int, default=128)
    parser.add_argument("--batch", type=int, default=2)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--lr", type=float, default=2e-5)
    parser.add_argument("--forward-sparsity", type=float, default=0.995)
    parser.add_argument("--backward-sparsity", type=float, default=0.99)
    parser.add_argument("--refresh-every", type=int, default=2)
    parser.add_argument("--report-every", type=int, default=10)
    return parser.parse_args(arguments)


if __name__ == "__main__":
    main(parse())
