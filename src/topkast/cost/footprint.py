"""Bytes of a model in training, by part, foreseen from sizes. The parts are those of `Handle.memory()`."""

from __future__ import annotations

import cmath
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from topkast.core.moment import Moment
from topkast.core.sets import Counts, Sets
from topkast.cost.memory import PARTS
from topkast.kernels.auto import NUM_SIZES
from topkast.kernels.engine import ConvGeometry
from topkast.kernels.native import gathers_input_grad, plan_sizes
from topkast.kernels.positions import index_dtype
from topkast.methods.base import Method


@dataclass(frozen=True)
class Tensors:
    """Parameters of one kind, all that matters of them for their bytes.

    Attributes:
        numel: Elements of all of them.
        count: How many tensors they are.
        element_size: Bytes of an element.
        is_trained: Whether they have a gradient and an optimizer state.
    """

    numel: int
    count: int
    element_size: int = 4
    is_trained: bool = True


@dataclass(frozen=True)
class Weight:
    """A weight that is to be sparse.

    Attributes:
        name: Of its layer.
        shape: Dense.
        counts: The sizes that the distribution gives it.
        kinds: Of the layers that share it: "linear", "conv", "embedding".
        geometry: How the convolution walks that it belongs to, if it does.
        element_size: Bytes of one number.
        is_trained: Whether it has a gradient.
    """

    name: str
    shape: tuple[int, ...]
    counts: Counts
    kinds: frozenset[str]
    geometry: ConvGeometry | None
    element_size: int
    is_trained: bool


@dataclass(frozen=True)
class OptimizerKind:
    """What an optimizer keeps.

    Attributes:
        per_element: Numbers for each element of a parameter.
        per_tensor: Bytes beside them for each parameter.
    """

    per_element: int
    per_tensor: int = 0


# Adam and AdamW count the steps of each parameter in a float32 of its own.
OPTIMIZERS: Mapping[str, OptimizerKind] = {
    "sgd": OptimizerKind(0),
    "momentum": OptimizerKind(1),
    "adam": OptimizerKind(2, 4),
    "adamw": OptimizerKind(2, 4),
}


def dense_footprint(tensors: Tensors, optimizer: OptimizerKind) -> dict[str, int]:
    """Of dense parameters, by part: e bytes for each of weight and gradient, and e·moments."""
    values = tensors.numel * tensors.element_size
    is_trained = int(tensors.is_trained)
    return {
        "weight": values,
        "gradient": is_trained * values,
        "optimizer": is_trained * (optimizer.per_element * values + optimizer.per_tensor * tensors.count),
    }


def weight_footprint(
    weight: Weight,
    counts: Counts,
    method: Method,
    optimizer: OptimizerKind,
    *,
    reservoir: str,
    returned: float,
) -> dict[str, int]:
    """Of a sparse weight, by part; i bytes for a position (4 below 2³¹ elements, else 8), e for a number.

        weight     e·|B|
        gradient   e·|B|
        optimizer  e·|B|·moments
        sets       (i + 1 + 1/8)·|B|, and 41 + 8·dimensions + 64
        plan       see `plan_footprint`
        reservoir  stored: (e + 1)·n; implicit: 56 + (2i + e)·u·(n - |B|); 0 if the method fetches nothing
        companion  what the method says that it keeps, with gradient and moments where that is trained

    Args:
        weight: Which one.
        counts: Its sizes.
        method: Says whether C has to be known, and what it keeps beside.
        optimizer: Its moments.
        reservoir: "stored" or "implicit".
        returned: u, the share of C that has been in B: as many elements have left it, each with position
            and value. A second position is for those that have left A, which are taken to be as many.
    """
    index = index_dtype(counts.numel).itemsize
    trained = Tensors(counts.backward, 1, weight.element_size, weight.is_trained)
    return {
        **dense_footprint(trained, optimizer),
        # Positions and flags; dims, step, key and three counts in int64; what `auto` has decided.
        "sets": (index + 1) * counts.backward
        + 8 * (len(weight.shape) + 5)
        + NUM_SIZES
        + (1 + -(-counts.backward // 8)),  # A at the last exchange
        "plan": _compiled_bytes(weight, counts, method.has_two_clocks),
        "reservoir": _reservoir_bytes(weight, counts, method, reservoir, returned, index),
        "companion": _companion_bytes(method, counts, optimizer),
    }


def total(parts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    """Part by part."""
    sums: dict[str, int] = dict.fromkeys(PARTS, 0)
    for part in parts:
        for name, size in part.items():
            sums[name] += size
    return sums


def _compiled_bytes(weight: Weight, counts: Counts, has_slack: bool) -> int:
    geometry, size = weight.geometry, 0
    if "embedding" in weight.kinds:
        size += table_footprint(weight.shape[0], counts.backward)
    if geometry is not None and geometry.num_dims < 3:  # in three dimensions there is no native engine
        gathers = gathers_input_grad(weight.shape[2:], geometry)
        size += plan_footprint(
            weight.shape,
            counts.forward,
            counts.backward,
            groups=geometry.groups,
            gathers=gathers,
            has_slack=has_slack,
        )
    if "linear" in weight.kinds:
        size += plan_footprint(weight.shape, counts.forward, counts.backward, has_slack=has_slack)
    return size


def _reservoir_bytes(
    weight: Weight, counts: Counts, method: Method, kind: str, returned: float, index: int
) -> int:
    if not method.fetches:
        return 0
    if kind == "stored":
        return (weight.element_size + 1) * counts.numel
    outside = counts.numel - counts.backward
    # Key, cursors and a count in int64, three float64 for the distribution.
    # Positions of what has left B, and of what has left A: lists, or bits where they are half as long.
    left, bits = round(returned * outside), -(-counts.numel // 8)
    return 56 + 2 * (bits if 2 * bits <= index * left else index * left) + weight.element_size * left


class _Unknown:
    """θ of which nothing is known but its size."""

    def __init__(self, numel: int) -> None:
        self.numel = numel

    def top(self, k: int) -> Tensor:
        return torch.empty(k, dtype=torch.int64, device="meta")

    def at(self, positions: Tensor) -> Tensor:
        return torch.empty(positions.shape, device="meta")


def _companion_bytes(method: Method, counts: Counts, optimizer: OptimizerKind) -> int:
    """The method is asked, on the meta device, where nothing takes memory."""
    with torch.device("meta"):
        sets = Sets.of(torch.empty(counts.backward, dtype=torch.int64))
        moment = Moment(_Unknown(counts.numel), counts, torch.Generator("cpu"))
        companion = method.companion(moment, sets, torch.float32)
    if companion is None:
        return 0
    learned = (
        dense_footprint(Tensors(p.numel(), 1, p.element_size()), optimizer) for p in companion.parameters()
    )
    return sum(b.nbytes for b in companion.buffers()) + sum(sum(parts.values()) for parts in learned)


# ---- the compiled Plan --------------------------------------------------------------------------------
#
# `native/plan.hpp` says what is in a Plan. Some lengths depend on where the elements are: how many rows have
# an element in a block, and how far these fill up whole groups. We take their mean for elements that are
# placed at random: of k columns a row has X, binomial.


@dataclass(frozen=True)
class PlanSizes:
    """What the compiled core says of itself (`PlanSizes` in `native/plan.hpp`); the defaults do without it.

    Attributes:
        look_ahead: Columns that kernels read beyond the last.
        group: Elements of B whose gradients are computed together.
        narrow_row: Up to so many elements of B in a row, an offset takes 16 bits.
        small_block: Columns of a block from the densities on that follow; below them it is a large one.
        sweep_density: For A.
        samples_density: For B.
        taps_block: Columns of a block if they are taps of a convolution, below the densities that follow.
        taps_sweep_density: For A.
        taps_samples_density: For B.
        small_tile: Rows of a tile of A; a large one if there are `many_rows`.
        samples_tiles: How many tiles B is cut into, if they have at least and at most the rows that follow.
        slack_share: Once A has changed, a cell has room for one more element in so many, and for
            `least_slack` more.
    """

    look_ahead: int = 16
    group: int = 4
    narrow_row: int = 2**16
    small_block: int = 128
    large_block: int = 512
    sweep_density: float = 0.04
    samples_density: float = 0.08
    taps_block: int = 256
    taps_sweep_density: float = 0.075
    taps_samples_density: float = 0.15
    small_tile: int = 256
    large_tile: int = 512
    many_rows: int = 1024
    samples_tiles: int = 8
    least_samples_tile: int = 8
    most_samples_tile: int = 64
    slack_share: int = 64
    least_slack: int = 4


_SIZES = PlanSizes(**(plan_sizes() or {}))


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
    def num_cells(self) -> int:
        """How many (tile, block) there are."""
        return -(-self.num_rows // self.tile_rows) * -(-self.num_columns // self.block_columns)

    @property
    def list_bytes(self) -> int:
        """Two 64-bit numbers for each cell, and the end."""
        return 2 * 8 * (self.num_cells + 1)

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


def plan_footprint(
    shape: tuple[int, ...],
    forward: int,
    backward: int,
    *,
    groups: int = 1,
    gathers: bool = False,
    explores: bool = True,
    has_slack: bool = False,
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
        has_slack: Whether A has changed since the Plan was made, which gives every cell some room.
    """
    rows, taps = shape[0], math.prod(shape[2:])
    columns = math.prod(shape[1:])
    numel, width = rows * columns, columns * groups
    # Of the matrix with the columns of all groups, by which blocks are cut.
    density = forward / (numel * groups)
    of_taps = taps > 1
    by_row = _sweep(rows, width, density, 1, of_taps, columns, forward / numel)
    if gathers:
        turned = rows // groups * taps
        by_column = _sweep(width // taps, rows * taps, density, 1, of_taps, turned, forward / numel)
    else:
        by_column = _sweep(width, rows, density, taps, False, rows // groups, forward / numel)
    updated = backward if explores else forward
    samples = _samples(rows, width, updated / (numel * groups), of_taps, columns, updated / numel)
    offset = 2 if backward <= _SIZES.narrow_row * rows else 4
    sweeps = 2 * ((2 + offset) * forward + 2 * _SIZES.look_ahead)
    columns_of_b = 2 * (updated + samples.filling + _SIZES.look_ahead)
    row_firsts = 4 * (rows + 1) * (1 if explores else 2)
    cells = sum(cut.list_bytes + cut.segment_bytes for cut in (by_row, by_column, samples))
    ends = sum(2 * 8 * cut.num_cells for cut in (by_row, by_column))
    slack = sum(_slack(cut, forward, 2 + offset) for cut in (by_row, by_column)) if has_slack else 0
    return round(sweeps + columns_of_b + row_firsts + cells + ends + slack)


def _slack(cut: _Cut, forward: int, element_bytes: int) -> float:
    """Room for elements and for segments, of 4 bytes each, behind those of every cell."""
    least = _SIZES.least_slack * cut.num_cells
    return (
        element_bytes * (forward / _SIZES.slack_share + least)
        + cut.segment_bytes / _SIZES.slack_share
        + 4 * (least + cut.num_cells)  # and how far each cell is from being in order
    )


def table_footprint(num_rows: int, backward: int) -> int:
    """Of an embedding: a 64-bit start for each row and the end; a 32-bit column and a flag for each of B."""
    return 8 * (num_rows + 1) + 5 * backward


def _sweep(
    rows: int, columns: int, density: float, taps: int, of_taps: bool, span: int, density_in_span: float
) -> _Cut:
    most = _SIZES.large_tile if rows >= _SIZES.many_rows else _SIZES.small_tile
    tile = max(taps, most // taps * taps)
    block = _block(density, _SIZES.sweep_density, _SIZES.taps_sweep_density if of_taps else 0.0)
    return _Cut(rows, columns, min(tile, rows), min(block, columns), span, density_in_span)


def _samples(
    rows: int, columns: int, density: float, of_taps: bool, span: int, density_in_span: float
) -> _Cut:
    tile = max(rows // _SIZES.samples_tiles, _SIZES.least_samples_tile)
    tile = min(tile, _SIZES.most_samples_tile)
    block = _block(density, _SIZES.samples_density, _SIZES.taps_samples_density if of_taps else 0.0)
    return _Cut(rows, columns, min(tile, rows), min(block, columns), span, density_in_span)


def _block(density: float, least: float, dense: float) -> int:
    """How many columns: a large block below `least`, one for taps below `dense`, else a small one."""
    if density < least:
        return _SIZES.large_block
    return _SIZES.taps_block if density < dense else _SIZES.small_block


def _missing(k: int, d: float) -> float:
    """E[-X mod g] for X binomial(k, d) and groups of g elements.

    P(X ≡ j mod g) = 1/g · Σ_m ω^(-mj)·(1 - d + d·ω^m)^k, with ω = e^(2πi/g).
    """
    group = _SIZES.group
    turns = [cmath.rect(1, 2 * math.pi * m / group) for m in range(group)]
    powers = [(1 - d + d * turn) ** k for turn in turns]
    chance = [sum(p * turns[-m * j % group] for m, p in enumerate(powers)).real / group for j in range(group)]
    return sum(-j % group * chance[j] for j in range(group))
