"""A `Plan`: where the elements of A and B are, checked once, in the orders the products want.

Engines accept Plans and nothing else, so no index that came from a file, a user or another process
reaches a kernel unchecked. A Plan owns copies: what Python does to the buffers later cannot change it.
"""

from __future__ import annotations

import itertools
import math
import weakref
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

# torch's CSR products want 32-bit indices where they fit (MKL converts 64-bit ones on every call).
_INT32_LIMIT = 2**31 - 1


def index_dtype(numel: int) -> torch.dtype:
    """The smallest of int32 and int64 that holds every position of a weight with `numel` elements."""
    return torch.int32 if numel <= _INT32_LIMIT else torch.int64


def check_positions(positions: Tensor, active: Tensor, numel: int) -> str | None:
    """Says what is wrong with the positions of B and the flags of A, or None when they are sound.

    The rules: one dimension, integers, in ``[0, numel)``, strictly increasing (so unique); one bool per
    position in `active`.
    """
    if positions.ndim != 1 or positions.dtype not in (torch.int32, torch.int64):
        return f"indices must be a 1-D int32 or int64 tensor, got {positions.ndim}-D {positions.dtype}"
    if active.shape != positions.shape or active.dtype != torch.bool:
        return (
            f"active must hold one bool per index ({positions.numel()}), "
            f"got {tuple(active.shape)} {active.dtype}"
        )
    if positions.numel() == 0:
        return None
    low, high = int(positions.min()), int(positions.max())
    if low < 0 or high >= numel:
        return f"indices must lie in [0, {numel}), got {low if low < 0 else high}"
    steps = positions[1:] - positions[:-1]
    bad = torch.nonzero(steps <= 0)
    if bad.numel():
        slot = int(bad[0])
        first, second = int(positions[slot]), int(positions[slot + 1])
        what = "duplicate" if first == second else "unsorted"
        return f"indices must be strictly increasing, got {what} {first}, {second} at slot {slot}"
    return None


@dataclass(frozen=True)
class Pattern:
    """The CSR pattern of a set of elements, and for each of them its slot in `values`.

    `slots` is None when the pattern is all of B in slot order, so that no gather is needed.
    """

    crow: Tensor
    col: Tensor
    slots: Tensor | None
    shape: tuple[int, int]

    def gather(self, values: Tensor) -> Tensor:
        """The values of this set's elements, in the pattern's order."""
        return values if self.slots is None else values.index_select(0, self.slots)

    def spread(self, entries: Tensor, num_slots: int) -> Tensor:
        """The inverse of `gather`: one number per slot of B, zero for slots outside this set."""
        if self.slots is None:
            return entries
        return entries.new_zeros(num_slots).index_copy_(0, self.slots, entries)


_handles = itertools.count()
_living: weakref.WeakValueDictionary[int, Plan] = weakref.WeakValueDictionary()


class Plan:
    """Validated, immutable copies of the positions of A and B of one weight.

    The weight is seen as a matrix of ``shape[0]`` rows and ``prod(shape[1:])`` columns; a position is
    ``row * columns + column``, a slot is the place of an element in `values`.

    Attributes:
        handle: A number that stands for this Plan where only numbers pass; see `Plan.of`.

    Args:
        shape: Shape of the dense weight.
        indices: Positions of B, strictly increasing.
        active: Which of B is in A.
        explores: Whether B∖A is updated. If not, the weight gradient is taken on A only.

    Raises:
        ValueError: The indices break a rule of `check_positions`.
    """

    def __init__(
        self, shape: tuple[int, ...], indices: Tensor, active: Tensor, *, explores: bool = True
    ) -> None:
        self.shape = tuple(shape)
        self.numel = math.prod(self.shape)
        self.num_rows = self.shape[0]
        self.num_columns = self.numel // max(1, self.num_rows)
        problem = check_positions(indices, active, self.numel)
        if problem is not None:
            raise ValueError(problem)
        self.explores = explores
        self.positions = indices.detach().to(torch.int64, copy=True)
        self.active = active.detach().clone()
        # What engines make of this Plan, by name: built on first use, dropped with the Plan.
        self.derived: dict[str, object] = {}
        self.active_slots = torch.nonzero(active).flatten()
        self.handle = next(_handles)
        _living[self.handle] = self

    @staticmethod
    def of(handle: int) -> Plan:
        """The living Plan with this handle.

        Raises:
            ValueError: There is none, or no longer.
        """
        plan = _living.get(handle)
        if plan is None:
            raise ValueError(f"no Plan has the handle {handle}: it is gone, or of another process")
        return plan

    def num_outputs(self, *, transpose: bool) -> int:
        """How many outputs a linear layer has: y = x·αᵀ, or y = x·α with `transpose`."""
        return self.num_columns if transpose else self.num_rows

    @property
    def device(self) -> torch.device:
        return self.positions.device

    @property
    def num_slots(self) -> int:
        """|B|, the length of `values`."""
        return self.positions.numel()

    def describes(self, indices: Tensor, active: Tensor, *, explores: bool) -> bool:
        """Whether this Plan still stands for these sets (their content, not their identity)."""
        return (
            explores == self.explores
            and indices.device == self.device
            and indices.shape == self.positions.shape
            and torch.equal(indices.to(torch.int64), self.positions)
            and torch.equal(active, self.active)
        )

    @cached_property
    def active_positions(self) -> Tensor:
        """Positions of A, increasing."""
        return self.positions.index_select(0, self.active_slots)

    @cached_property
    def updated_slots(self) -> Tensor | None:
        """Slots that receive a gradient, or None for all of B."""
        return None if self.explores else self.active_slots

    @cached_property
    def updated_positions(self) -> Tensor:
        """Positions that receive a gradient, increasing."""
        return self.positions if self.explores else self.active_positions

    @cached_property
    def forward_rows(self) -> Pattern:
        """A by row: α as CSR."""
        return self._pattern(self.active_positions, self.active_slots)

    @cached_property
    def forward_columns(self) -> Pattern:
        """A by column: αᵀ as CSR. The sort is stable, so rows increase within a column."""
        columns = self.active_positions % self.num_columns
        order = torch.argsort(columns, stable=True)
        rows = self.active_positions.index_select(0, order) // self.num_columns
        return _csr(
            columns.index_select(0, order),
            rows,
            self.active_slots.index_select(0, order),
            (self.num_columns, self.num_rows),
        )

    @cached_property
    def backward_rows(self) -> Pattern:
        """The elements that receive a gradient, by row."""
        return self._pattern(self.updated_positions, self.updated_slots)

    def _pattern(self, positions: Tensor, slots: Tensor | None) -> Pattern:
        rows, columns = positions // self.num_columns, positions % self.num_columns
        return _csr(rows, columns, slots, (self.num_rows, self.num_columns))


def _csr(major: Tensor, minor: Tensor, slots: Tensor | None, shape: tuple[int, int]) -> Pattern:
    """CSR of elements already ordered by (major, minor)."""
    dtype = index_dtype(max(major.numel(), *shape))
    starts = torch.arange(shape[0] + 1, device=major.device)
    crow = torch.searchsorted(major.contiguous(), starts)
    return Pattern(crow.to(dtype), minor.to(dtype), slots, shape)
