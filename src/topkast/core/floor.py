"""A floor per neuron: Top-K in which every output and every input of a layer keeps its largest elements.

    F = ∪ over outputs of the `min_fan_in` largest of each ∪ over inputs of the `min_fan_out` largest of each
    S = F ∪ TopK of the others, with K - |F|

Ties go to the smaller position, as everywhere. Let T be the plain Top-K. A line (an output or an input) that
has enough elements in T has its largest there, so F∖T belongs to the lines that are short, and S = T if none
is. Else S is found in T and the largest of the short lines: nothing else of θ is looked at.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from topkast.core.reservoir import Theta
from topkast.core.select import absent, gather, top_k, union
from topkast.core.sets import Counts
from topkast.kernels import passes

# Elements of short lines that are looked at together.
_MANY = 1 << 20


@dataclass(frozen=True)
class Grid:
    """How the positions of a weight lie: position = (row·columns + column)·taps + tap.

    Attributes:
        rows: Output neurons or channels, or the vectors of an embedding.
        columns: Inputs of a row.
        taps: Elements that join one output with one input: those of a kernel.
        groups: Of a convolution: so many blocks of rows, each with inputs of its own.
        is_transposed: Whether rows are inputs and columns outputs, as in Hugging Face's Conv1D.
    """

    rows: int
    columns: int
    taps: int = 1
    groups: int = 1
    is_transposed: bool = False

    @classmethod
    def of(cls, shape: tuple[int, ...], groups: int = 1, *, is_transposed: bool = False) -> Grid:
        """Of a weight of this shape: (rows, columns, taps…)."""
        rows, columns = (*shape, 1, 1)[:2]
        return cls(rows, columns, math.prod(shape[2:]), groups, is_transposed)

    def floor(self, fan_in: int, fan_out: int) -> Floor | None:
        """At least so many elements for each output, and for each input; None if that says nothing."""
        if fan_in == fan_out == 0:
            return None
        return Floor(self, *((fan_out, fan_in) if self.is_transposed else (fan_in, fan_out)))


@dataclass(frozen=True)
class Floor:
    """How many elements of a set each row and each column keeps."""

    grid: Grid
    per_row: int
    per_column: int

    # ---- lines ----------------------------------------------------------------------------------------

    def _lines(self) -> Iterator[tuple[int, bool, int, int]]:
        """For rows and columns, where they have a floor: that, which they are, how many, how long."""
        g = self.grid
        if self.per_row:
            yield self.per_row, True, g.rows, g.columns * g.taps
        if self.per_column:
            yield self.per_column, False, g.columns * g.groups, g.rows // g.groups * g.taps

    def _line_of(self, positions: Tensor, is_row: bool) -> Tensor:
        """The number of the row, or of the column, of each position. Columns of later groups come after."""
        g = self.grid
        row = positions // (g.columns * g.taps)
        return row if is_row else row // (g.rows // g.groups) * g.columns + positions // g.taps % g.columns

    def _positions(self, lines: Tensor, is_row: bool) -> Tensor:
        """Positions of all elements of a few rows or columns, by line: (lines, length)."""
        g = self.grid
        if is_row:
            return lines[:, None] * (g.columns * g.taps) + torch.arange(g.columns * g.taps)
        block = g.rows // g.groups
        rows = (lines // g.columns * block)[:, None] + torch.arange(block)
        first = rows * g.columns + (lines % g.columns)[:, None]
        return (first[:, :, None] * g.taps + torch.arange(g.taps)).flatten(1)

    # ---- whether it can be ----------------------------------------------------------------------------

    def check(self, counts: Counts) -> None:
        """Raises ValueError unless |A| elements have room for this floor, whatever θ is."""
        way_out = "lower the floor or the sparsity, or leave the layer dense (`skip`, `keep_dense`)"
        total = 0
        for least, is_row, number, length in self._lines():
            option, line, _ = self._words(is_row)
            if least > length:
                raise ValueError(f"`{option}` is {least}, but {line} has {length} elements; {way_out}")
            total += least * number
        if total > counts.forward:
            floors = " and ".join(
                f"`{self._words(is_row)[0]}` {least} for {number:,} {self._words(is_row)[2]}"
                for least, is_row, number, _ in self._lines()
            )
            raise ValueError(
                f"{floors} may need {total:,} elements, but |A| is {counts.forward:,}; {way_out}"
            )

    def _words(self, is_row: bool) -> tuple[str, str, str]:
        """The option that a floor came from, one of its lines, and several."""
        if is_row != self.grid.is_transposed:
            return "min_fan_in", "an output", "outputs"
        return "min_fan_out", "an input", "inputs"

    # ---- choosing -------------------------------------------------------------------------------------

    def top(self, theta: Theta, k: int) -> Tensor:
        """Increasing positions of S, from all of θ. For an exchange.

        Nothing of dense size is made: of short lines a few at a time are looked at.
        """
        positions = theta.top(k)
        lacking = [self._best(theta, positions.device, *short) for short in self._short(positions)]
        if not lacking:
            return positions
        more = torch.cat(lacking).unique()
        positions = union(positions, gather(more, absent(more, positions)))
        return positions[self.within(theta.at(positions), positions, k)]

    def _short(self, positions: Tensor) -> Iterator[tuple[int, bool, int, Tensor]]:
        """For rows and columns: floor, which, length, and those that have fewer elements than that."""
        for least, is_row, number, length in self._lines():
            counts = torch.bincount(self._line_of(positions, is_row), minlength=number)
            short = torch.nonzero(counts < least).flatten()
            if short.numel():
                yield least, is_row, length, short.cpu()

    def _best(
        self, theta: Theta, device: torch.device, least: int, is_row: bool, length: int, lines: Tensor
    ) -> Tensor:
        """Positions of the `least` largest of each of these lines, and of what equals the last of them."""
        found = []
        for part in lines.split(max(1, _MANY // length)):
            places = self._positions(part, is_row)
            flat = places.flatten()
            order = flat if is_row else flat.sort().values  # θ is asked by increasing positions
            sizes = theta.at(order.to(device)).abs().cpu()
            sizes = (sizes if is_row else sizes[torch.searchsorted(order, flat)]).view_as(places)
            threshold = sizes.topk(least, dim=1).values[:, -1:]
            found.append(places[sizes >= threshold])
        return torch.cat(found).to(device)

    def within(self, values: Tensor, positions: Tensor, k: int) -> Tensor:
        """Slots of S among some elements, at increasing positions, increasing."""
        chosen = top_k(values, k)
        if chosen.numel() == 0:
            return chosen
        active = torch.zeros(values.numel(), dtype=torch.bool, device=values.device)
        active[chosen] = True
        least = float(values[chosen].abs().min())
        changed, _ = self.repair(values, positions, active, chosen[:0], least, -math.inf)
        active[changed] = ~active[changed]
        return torch.nonzero(active).flatten()

    def repair(
        self, values: Tensor, positions: Tensor, active: Tensor, wrong: Tensor, least: float, bound: float
    ) -> tuple[Tensor, float]:
        """From the plain Top-K of some elements to S.

        Args:
            values: Of the elements.
            positions: Of the elements, increasing.
            active: A flag for each.
            wrong: Slots (increasing) whose flags are flipped in the Top-K.
            least: The least magnitude in the Top-K.
            bound: What the least magnitude of S∖F is compared with: if the Top-K is S and above that, `least`
                says enough.

        Returns:
            The slots whose flags are flipped in S, increasing; and the least magnitude of S∖F, infinity
            without any.
        """
        if passes.can_select(values) and active.is_cpu:
            g = self.grid
            lines = (g.rows, g.columns, g.taps, g.groups, self.per_row, self.per_column)
            return passes.repair(lines, values, positions, active, wrong, least, bound)
        return self.repair_portable(values, positions, active, wrong)

    def repair_portable(
        self, values: Tensor, positions: Tensor, active: Tensor, wrong: Tensor
    ) -> tuple[Tensor, float]:
        """`repair` with torch alone, on any device, straight from the definition."""
        k = int(active.sum()) + int((~active[wrong]).sum()) - int(active[wrong].sum())
        size = values.detach().abs()
        order = size.sort(descending=True, stable=True).indices
        kept = torch.zeros_like(active)
        for least, is_row, _, _ in self._lines():
            kept[order[_rank_in_line(self._line_of(positions.long(), is_row)[order]) < least]] = True
        others = order[~kept[order]][: k - int(kept.sum())]
        wanted = kept.index_fill(0, others, True)
        free = float(size[others].min()) if others.numel() else math.inf
        return torch.nonzero(wanted != active).flatten(), free


def top(theta: Theta, k: int, floor: Floor | None) -> Tensor:
    """Positions of the k largest |θ|, with a floor if there is one, increasing."""
    return theta.top(k) if floor is None else floor.top(theta, k)


def top_within(values: Tensor, positions: Tensor, k: int, floor: Floor | None) -> Tensor:
    """Slots of the k largest of some elements, with a floor if there is one, increasing."""
    return top_k(values, k) if floor is None else floor.within(values, positions, k)


def _rank_in_line(lines: Tensor) -> Tensor:
    """How many entries of the same line come before each entry."""
    by_line = lines.sort(stable=True)
    count = torch.arange(lines.numel(), device=lines.device)
    starts = torch.searchsorted(by_line.values, by_line.values)
    return torch.empty_like(count).index_copy_(0, by_line.indices, count - starts)
