"""How many bytes the compiled Plan of a weight takes, foreseen from its sizes. Pure arithmetic.

What is in a Plan is said in `native/plan.hpp`. Some lengths depend on where the elements are: how many rows
have an element in a block, and how far these fill up whole groups. They are taken at their mean for elements
that are placed at random: of k columns a row has X, binomial.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

# As in `native/plan.cpp` and `plan.hpp`: what kernels read beyond the end, and the sizes of tiles and blocks.
_LOOK_AHEAD = 16
_GROUP = 4
_SMALL_BLOCK, _LARGE_BLOCK = 128, 512
_SWEEP_LIMIT, _SAMPLES_LIMIT = 0.04, 0.08
_NARROW_ROW = 2**16


@dataclass(frozen=True)
class _Cut:
    """A matrix cut into tiles of rows and blocks of columns.

    Attributes:
        span: In how many columns a row can have elements at all; fewer than there are with groups.
        density: Of the elements among those.
    """

    num_rows: int
    num_columns: int
    tile_rows: int
    block_columns: int
    span: int
    density: float

    @property
    def list_bytes(self) -> int:
        """Two 64-bit numbers for each (tile, block), and the end."""
        cells = -(-self.num_rows // self.tile_rows) * -(-self.num_columns // self.block_columns)
        return 2 * 8 * (cells + 1)

    @property
    def segment_bytes(self) -> float:
        """4 for each row with an element in a block: Σ (1 - (1 - d)^k) of them; and one more."""
        taken = sum(times * (1 - (1 - self.density) ** k) for k, times in self._blocks())
        return 4 * (self.num_rows * taken + 1)

    @property
    def filling(self) -> float:
        """How many elements are missing to whole groups, in all segments."""
        return self.num_rows * sum(times * _missing(k, self.density) for k, times in self._blocks())

    def _blocks(self) -> tuple[tuple[int, int], ...]:
        """Sizes of a row's blocks, and how often each occurs."""
        return (self.block_columns, self.span // self.block_columns), (self.span % self.block_columns, 1)


def plan_bytes(
    shape: tuple[int, ...],
    forward: int,
    backward: int,
    *,
    groups: int = 1,
    gathers: bool = False,
    explores: bool = True,
) -> int:
    """Of the Plan of a linear layer or a convolution.

        8·|A| + 2·(|B| + filling) + 4·segments of A by row, A by column and B + 4·(rows + 1) + lists of cells

    Two sweeps over A have a 16-bit column and a 16-bit offset for each element; of B there is a 16-bit
    column, filled up to whole groups of 4 in each row and block. A segment is one row within one block.

    Args:
        shape: Of the dense weight.
        forward: |A|.
        backward: |B|.
        groups: Of a convolution.
        gathers: Whether the input gradient of a convolution is a convolution too; see
            `native.gathers_input_grad`.
        explores: Whether all of B is updated, or A alone.
    """
    rows, taps = shape[0], math.prod(shape[2:])
    columns = math.prod(shape[1:])
    numel, width = rows * columns, columns * groups
    density = forward / (
        numel * groups
    )  # of the matrix with the columns of all groups, by which blocks are cut
    by_row = _sweep(rows, width, density, 1, columns, forward / numel)
    if gathers:
        by_column = _sweep(width // taps, rows * taps, density, 1, rows // groups * taps, forward / numel)
    else:
        by_column = _sweep(width, rows, density, taps, rows // groups, forward / numel)
    updated = backward if explores else forward
    samples = _samples(rows, width, updated / (numel * groups), columns, updated / numel)
    offset = 2 if backward <= _NARROW_ROW * rows else 4
    sweeps = 2 * ((2 + offset) * forward + 2 * _LOOK_AHEAD)
    columns_of_b = 2 * (updated + samples.filling + _LOOK_AHEAD)
    row_firsts = 4 * (rows + 1) * (1 if explores else 2)
    cells = sum(cut.list_bytes + cut.segment_bytes for cut in (by_row, by_column, samples))
    return round(sweeps + columns_of_b + row_firsts + cells)


def table_bytes(num_rows: int, backward: int) -> int:
    """Of an embedding: a 64-bit start for each row and the end; a 32-bit column and a flag for each of B."""
    return 8 * (num_rows + 1) + 5 * backward


def _sweep(rows: int, columns: int, density: float, taps: int, span: int, density_in_span: float) -> _Cut:
    tile = max(taps, (512 if rows >= 1024 else 256) // taps * taps)
    block = _SMALL_BLOCK if density >= _SWEEP_LIMIT else _LARGE_BLOCK
    return _Cut(rows, columns, min(tile, rows), min(block, columns), span, density_in_span)


def _samples(rows: int, columns: int, density: float, span: int, density_in_span: float) -> _Cut:
    tile = min(max(rows // 8, 8), 64)
    block = _SMALL_BLOCK if density >= _SAMPLES_LIMIT else _LARGE_BLOCK
    return _Cut(rows, columns, min(tile, rows), min(block, columns), span, density_in_span)


def _missing(k: int, d: float) -> float:
    """E[-X mod 4] for X binomial(k, d), by P(X ≡ j mod 4) = ¼·Σ_m ω^(-mj)·(1 - d + d·ω^m)^k, ω = i."""
    turns = [1j**m for m in range(_GROUP)]
    powers = [(1 - d + d * turn) ** k for turn in turns]
    chances = [
        sum(p * turns[-m * j % _GROUP] for m, p in enumerate(powers)).real / _GROUP for j in range(_GROUP)
    ]
    return sum(-j % _GROUP * chance for j, chance in enumerate(chances))
