"""What data-parallel training sends in a step, dense and sparse: several ranks on this machine, over gloo.

    python examples/ddp_traffic.py --ranks 2 --model transformer-xl

Gradients and buffers are counted where DistributedDataParallel hands them over; "written" is what processes
wrote to sockets, as the kernel counts it (Linux), for all ranks together and divided by their number.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import topkast
from topkast.core.local import forget_local
from topkast.models import Decoder, TransformerXL

BATCH, LENGTH = 8, 128
MODELS: dict[str, Callable[[], nn.Module]] = {
    "decoder": lambda: Decoder(256, width=256, depth=2, num_heads=4, window=LENGTH),
    "transformer-xl": lambda: TransformerXL(256, depth=4, d_model=512, num_heads=8, d_ff=2048),
    "tiny": lambda: Decoder(16, width=16, depth=1, num_heads=2, window=LENGTH),
}
# Steps that are counted, after as many to warm up; sets are chosen anew once in them.
STEPS = 5
CASES: dict[str, Callable[[], topkast.Method] | None] = {
    "dense": None,
    "Top-KAST 90/80": lambda: topkast.TopKAST(0.9, 0.8, refresh_every=STEPS),
    "the same, all buffers sent": lambda: topkast.TopKAST(0.9, 0.8, refresh_every=STEPS),
    "RigL 90": lambda: topkast.RigL(0.9, update_every=STEPS, t_end=10 * STEPS),
}


@dataclass
class Traffic:
    """Per step and rank.

    Attributes:
        gradients: Bytes of gradients that are added up.
        buffers: Bytes of buffers that the first rank sends to each of the others.
        written: Bytes written to sockets.
        seconds: Of a step.
    """

    gradients: float
    buffers: float
    written: float
    seconds: float


def measure(case: str, model_name: str, rank: int, ranks: int) -> Traffic:
    torch.manual_seed(0)
    model, make = MODELS[model_name](), CASES[case]
    sparse = None if make is None else topkast.sparsify(model, make(), engine="native")
    if case.endswith("buffers sent"):
        forget_local(model)  # what torch does by itself
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
    if sparse is not None:
        sparse.attach(optimizer)
    wrapped = DistributedDataParallel(model)
    counted = {"gradients": 0, "buffers": 0}

    def hook(state, bucket):  # without annotations: torch wants them to be classes
        counted["gradients"] += bucket.buffer().nbytes
        work = dist.all_reduce(bucket.buffer().div_(ranks), async_op=True)
        return work.get_future().then(lambda future: future.value()[0])

    wrapped.register_comm_hook(None, hook)
    generator = torch.Generator().manual_seed(rank)

    def steps() -> None:
        for _ in range(STEPS):
            x = torch.randint(16, (BATCH, LENGTH), generator=generator)
            output: Any = wrapped(x)
            logits: Tensor = output[0] if isinstance(output, tuple) else output
            nn.functional.cross_entropy(logits.flatten(0, 1), x.flatten()).backward()
            counted["buffers"] += sum(b.nbytes for b in wrapped.modules_buffers)
            optimizer.step()
            optimizer.zero_grad()

    steps()
    counted.update(gradients=0, buffers=0)
    dist.barrier()
    written, started = _written(), time.perf_counter()
    steps()
    dist.barrier()
    seconds, written = time.perf_counter() - started, _written() - written
    total = torch.tensor(float(written))
    dist.all_reduce(total)
    return Traffic(
        counted["gradients"] / STEPS,
        counted["buffers"] / STEPS,
        float(total) / ranks / STEPS,
        seconds / STEPS,
    )


def _written() -> int:
    """Bytes that this process has written, to sockets and everything else."""
    try:
        lines = Path("/proc/self/io").read_text().splitlines()
    except OSError:
        return 0
    return int(dict(line.split(": ") for line in lines)["wchar"])


def work(rank: int, ranks: int, model: str, folder: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=ranks)
    rows = {case: asdict(measure(case, model, rank, ranks)) for case in CASES}
    if rank == 0:
        print(f"{model}, {ranks} ranks: kB per step and rank")
        print(f"{'':28}  gradients    buffers    written   ms/step")
        for case, row in rows.items():
            sizes = "  ".join(f"{row[name] / 1000:9,.1f}" for name in ("gradients", "buffers", "written"))
            print(f"{case:28}  {sizes}  {1000 * row['seconds']:8.0f}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


def main(options: argparse.Namespace) -> None:
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    start = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder:
        arguments = (options.ranks, options.model, folder)
        processes = [start.Process(target=work, args=(rank, *arguments)) for rank in range(options.ranks)]
        for process in processes:
            process.start()
        for process in processes:
            process.join()
    if any(process.exitcode for process in processes):
        raise SystemExit("a rank has failed; what it said is above")


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="What data-parallel training sends in a step.")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--model", choices=MODELS, default="decoder")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    main(parse())
