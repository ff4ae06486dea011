"""Numbers made of ratios: the ideal by FLOPs, where sparse starts to win; and the tables that show them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from topkast.kernels import native
from topkast.text import padded

Pair = tuple[float, float]
"""Forward and backward sparsity."""

PAIRS: tuple[Pair, ...] = ((0.8, 0.5), (0.9, 0.8), (0.95, 0.9), (0.98, 0.95))
EQUAL_PAIRS: tuple[Pair, ...] = tuple((s, s) for s in (0.8, 0.9, 0.95, 0.98))


def ideal(pair: Pair) -> float:
    """How many times fewer FLOPs than dense: 3/(2(1 - s_f) + (1 - s_b)).

    Of a layer's three products two are on A (forward, input gradient) and one on B (weight gradient).
    """
    forward, backward = pair
    return 3 / (2 * (1 - forward) + (1 - backward))


@dataclass(frozen=True)
class Peaks:
    """FLOP/s that this machine reaches with multiply-adds and nothing else, by all threads.

    Attributes:
        registers: On numbers in registers.
        loads: With one load from the first cache for each, as products over elements of A need.
    """

    registers: float
    loads: float

    @classmethod
    def measure(cls) -> Peaks | None:
        """None without the compiled core."""
        core, threads = native._native, torch.get_num_threads()
        return None if core is None else cls(core.peak(False, threads), core.peak(True, threads))

    def __str__(self) -> str:
        return (
            f"multiply-adds in registers: {self.registers / 1e9:.0f} GFLOP/s; with a load each: "
            f"{self.loads / 1e9:.0f}"
        )


def sparsities(pair: Pair) -> dict[str, float]:
    """A pair as reports keep it."""
    return {"forward_sparsity": pair[0], "backward_sparsity": pair[1]}


def show_pair(pair: Pair) -> str:
    """A pair as tables show it: "90/80 %"."""
    return f"{100 * pair[0]:g}/{100 * pair[1]:g} %"


@dataclass(frozen=True)
class BreakEven:
    """The sparsity from which on sparse is faster than dense, as far as was measured.

    Attributes:
        sparsity: Where the ratio crosses 1, or None if it does not within the range.
        always: Whether sparse is faster over all of the range, so that the crossing is below it.
        lowest: The lowest sparsity measured.
        highest: The highest.
    """

    sparsity: float | None
    always: bool
    lowest: float
    highest: float

    def __str__(self) -> str:
        if self.sparsity is not None:
            return f"{self.sparsity:.0%}"
        if self.always:
            return f"below {self.lowest:.0%}: faster at every sparsity measured"
        return f"never: slower than dense up to {self.highest:.0%}"


def break_even(sparsities: Sequence[float], ratios: Sequence[float]) -> BreakEven:
    """Where the ratio to dense crosses 1 for the last time, interpolated linearly.

    The last time, so that sparse wins at every measured sparsity above it, even if noise made it win once
    below.

    Args:
        sparsities: Increasing.
        ratios: Dense time over sparse time at each.
    """
    lowest, highest = sparsities[0], sparsities[-1]
    losing = [i for i, ratio in enumerate(ratios) if ratio < 1]
    if not losing:
        return BreakEven(None, True, lowest, highest)
    last = losing[-1]
    if last == len(ratios) - 1:
        return BreakEven(None, False, lowest, highest)
    below, above = ratios[last], ratios[last + 1]
    share = (1 - below) / (above - below)
    crossing = sparsities[last] + share * (sparsities[last + 1] - sparsities[last])
    return BreakEven(crossing, False, lowest, highest)


Say = Callable[[str], None]
"""Where lines go: `print`, mostly."""


@dataclass(frozen=True)
class Table:
    """Column names, and lines that fit below them: words to the left, numbers to the right."""

    label: str
    columns: Sequence[str]
    label_width: int = 12

    def header(self) -> str:
        return self.line(self.label, self.columns)

    def line(self, label: str, cells: Sequence[str]) -> str:
        widths = [max(8, len(name)) for name in self.columns]
        return padded((label, *cells), (self.label_width, *widths))
