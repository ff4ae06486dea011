"""Suite `select`: choosing the largest weights, our Top-K against `torch.topk`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial

import torch
from torch import Tensor

from topkast.bench.contenders import WrongResult
from topkast.bench.ratios import Say, Table
from topkast.bench.report import Report
from topkast.bench.timing import time_in_turns
from topkast.core.select import top_k, top_k_portable
from topkast.text import times

SIZES = (100_000, 2_400_000, 10_000_000)
SHARES = (0.01, 0.1, 0.5)


@dataclass(frozen=True)
class Settings:
    """What to measure.

    Attributes:
        sizes: How many numbers there are.
        shares: Which share of them is chosen.
        repeats: Rounds per measurement.
    """

    sizes: tuple[int, ...] = SIZES
    shares: tuple[float, ...] = SHARES
    repeats: int = 9


def run(settings: Settings, say: Say) -> Report:
    report = Report("select", asdict(settings))
    say(
        "choosing the largest magnitudes, ties to the smaller position: how many times faster than torch.topk"
    )
    say("(which sorts, and leaves ties open; unsorted: with sorted=False)\n")
    table = Table("numbers", ["chosen", "ours", "portable", "unsorted"])
    say(table.header())
    for numel in settings.sizes:
        torch.manual_seed(0)
        numbers = torch.randn(numel)
        for share in settings.shares:
            k = round(share * numel)
            check(top_k, numbers, k)
            check(top_k, (8 * numbers).round(), k)  # full of ties
            timings = time_in_turns(
                {
                    "torch.topk": partial(_torch_topk, numbers, k),
                    "unsorted": partial(_torch_topk, numbers, k, is_sorted=False),
                    "ours": partial(top_k, numbers, k),
                    "portable": partial(top_k_portable, numbers, k),
                },
                settings.repeats,
            )
            base = timings["torch.topk"]
            report.rows += [
                {
                    "numel": numel,
                    "k": k,
                    "contender": name,
                    **timing.as_record(),
                    "ratio": base.ratio_to(timing),
                }
                for name, timing in timings.items()
            ]
            ratios = [times(base.ratio_to(timings[name])) for name in ("ours", "portable", "unsorted")]
            say(table.line(f"{numel:,}", [f"{share:.0%}", *ratios]))
    return report


def _torch_topk(numbers: Tensor, k: int, *, is_sorted: bool = True) -> Tensor:
    return torch.topk(numbers.abs(), k, sorted=is_sorted).indices


def check(select: Callable[[Tensor, int], Tensor], numbers: Tensor, k: int) -> None:
    """Raises WrongResult unless `select` chooses what a stable sort by magnitude puts first."""
    expected = torch.sort(numbers.abs(), descending=True, stable=True).indices[:k].sort().values
    if not torch.equal(select(numbers, k), expected):
        raise WrongResult(
            f"Top-K of {numbers.numel():,} numbers, k = {k:,}, is not what a stable sort chooses"
        )
