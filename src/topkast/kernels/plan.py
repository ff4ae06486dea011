"""A `Plan`: where the elements of A and B are, checked once, in the orders the products want.

Engines accept Plans and nothing else, so no index that came from a file, a user or another process
reaches a kernel unchecked. A Plan has no copy of the positions: it looks at the buffers it was made from, and
refuses to be used when somebody has given them another content since. Where A has changed within B, the next
Plan takes over what the last one has, which costs what has changed.
"""

from __future__ import annotations

import itertools
import math
import weakref
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import torch
from torch import Tensor

from topkast.kernels.positions import fingerprint, fingerprint_change, glance, index_dtype


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


@dataclass(frozen=True)
class ActiveChange:
    """Elements of B that enter A or leave it.

    Attributes:
        slots: Of each, increasing, int64.
        positions: Of each, int64.
        enters: Whether it enters.
    """

    slots: Tensor
    positions: Tensor
    enters: Tensor


class Derived(Protocol):
    """What engines make of a Plan."""

    @property
    def num_bytes(self) -> int: ...

    def follow(self, change: ActiveChange) -> bool:
        """Takes over a change of A; False if it has to be made anew instead."""
        ...


# A Plan is made anew if A changes by more than this share of B: it takes about as long.
_MOST_CHANGES = 1 / 32

# All of the content is looked at in one of so many uses, a sample of it in every one.
_USES_PER_LOOK = 16

# What is derived from A, and not to be taken over.
_OF_A = ("num_active", "forward_rows", "forward_columns")

_handles = itertools.count()
_living: weakref.WeakValueDictionary[int, Plan] = weakref.WeakValueDictionary()


class Plan:
    """Checked positions of A and B of one weight.

    The weight is seen as a matrix of ``shape[0]`` rows and ``prod(shape[1:])`` columns; a position is
    ``row * columns + column``, a slot is the place of an element in `values`.

    What is said in tensors is derived when it is asked for, since most of it takes more memory than the sets
    themselves; only patterns are kept, and what engines put into `derived`.

    Attributes:
        handle: A number that stands for this Plan where only numbers pass; see `Plan.of`.
        num_slots: |B|, the length of `values`.
        derived: What engines make of this Plan, by name: built on first use, dropped with the Plan.

    Args:
        shape: Shape of the dense weight.
        indices: Positions of B, strictly increasing. Not copied: the Plan holds for the present content.
        active: Which of B is in A. Not copied either.
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
        self.explores = explores
        self.num_slots = indices.numel()
        self.derived: dict[str, Derived] = {}
        self._fingerprint = fingerprint(indices, active, self.numel)
        self._look_at(indices, active)
        self._register()

    def _register(self) -> None:
        self.handle = next(_handles)
        _living[self.handle] = self

    def after(self, change: ActiveChange) -> Plan | None:
        """The Plan for the same B once A has changed so, and its buffers with it. This one is used up.

        None if it had better be made anew: too much has changed, or more than A depends on it.
        """
        limit = _MOST_CHANGES * self.num_slots
        if not self.explores or change.slots.numel() > max(64, limit) or not self._indices.is_cpu:
            return None
        plan = object.__new__(Plan)
        taken = {name: value for name, value in vars(self).items() if name not in _OF_A}
        vars(plan).update(taken)
        plan._fingerprint = (self._fingerprint + fingerprint_change(change.slots, change.enters)) % 2**64
        plan._look_at(self._indices, self._active)
        plan._register()
        plan.derived = {name: made for name, made in self.derived.items() if made.follow(change)}
        self.derived = {}
        return plan

    @staticmethod
    def of(handle: int) -> Plan:
        """The living Plan with this handle.

        Raises:
            ValueError: There is none, or no longer.
        """
        plan = _living.get(handle)
        if plan is None:
            raise ValueError(
                f"no Plan has the handle {handle}: it is gone, as after a refresh between a forward pass and "
                "its backward pass, or of another process"
            )
        return plan

    def num_outputs(self, *, transpose: bool) -> int:
        """How many outputs a linear layer has: y = x·αᵀ, or y = x·α with `transpose`."""
        return self.num_columns if transpose else self.num_rows

    # ---- the buffers ----------------------------------------------------------------------------

    def _look_at(self, indices: Tensor, active: Tensor) -> None:
        """Takes these buffers, whose present content is that of this Plan, for its own."""
        self._indices, self._active = indices, active
        self._versions = (_version(indices), _version(active))
        self._glance = glance(indices, active)
        self._num_uses = 0

    def is_unwritten(self) -> bool:
        """Whether the version counters of its buffers are where they were."""
        return self._versions == (_version(self._indices), _version(self._active))

    def _is_content_of(self, indices: Tensor, active: Tensor) -> bool:
        if (indices.device, indices.dtype) != (self.device, self._indices.dtype):
            return False
        try:
            return fingerprint(indices, active, self.numel) == self._fingerprint
        except ValueError:
            return False

    def describes(self, indices: Tensor, active: Tensor, *, explores: bool) -> bool:
        """Whether this Plan stands for these sets (their content, not their identity).

        Versions and a sample of the content tell that buffers were replaced. A write of single elements that
        no version counts (`.data`) is seen after at most 16 uses; until then the Plan computes with the sets
        that it was checked with.
        """
        if explores != self.explores:
            return False
        is_same = indices is self._indices and active is self._active
        if is_same and self.is_unwritten() and self._glance == glance(indices, active):
            self._num_uses += 1
            if self._num_uses % _USES_PER_LOOK or indices.device.type != "cpu":
                return True
        if indices.numel() != self.num_slots or not self._is_content_of(indices, active):
            return False
        self._look_at(indices, active)
        return True

    def require_valid(self) -> None:
        """To be called before anything is computed with this Plan.

        Raises:
            RuntimeError: The buffers it was made from have another content by now.
        """
        if self.is_unwritten():  # of what no counter sees, `describes` knew in the forward pass
            return
        if not self.describes(self._indices, self._active, explores=self.explores):
            raise RuntimeError(
                "the sets of a sparse weight (its indices and active) were changed after this Plan was made; "
                "a Plan holds for the sets it was checked with: take `weight.plan` anew, and do not change "
                "sets, by a refresh or by loading a state, between a forward pass and its backward pass"
            )

    def forget_derived(self) -> None:
        """Drops what engines have made of this Plan; whoever needs it makes it anew."""
        self.derived.clear()
        for name in [name for name, value in vars(self).items() if isinstance(value, Pattern)]:
            del self.__dict__[name]

    @property
    def device(self) -> torch.device:
        return self._indices.device

    @property
    def indices(self) -> Tensor:
        """Positions of B, increasing, as the weight has them. Not to be written to."""
        self.require_valid()
        return self._indices

    @property
    def active(self) -> Tensor:
        """Which of B is in A. Not to be written to."""
        self.require_valid()
        return self._active

    # ---- derived from them ----------------------------------------------------------------------

    @cached_property
    def num_active(self) -> int:
        """|A|."""
        return int(torch.count_nonzero(self.active))

    @property
    def num_updated(self) -> int:
        """How many elements receive a gradient."""
        return self.num_slots if self.explores else self.num_active

    @property
    def positions(self) -> Tensor:
        """Positions of B, increasing, in int64."""
        return self.indices.long()

    @property
    def active_slots(self) -> Tensor:
        """Slots of A, increasing."""
        return torch.nonzero(self.active).flatten()

    @property
    def active_positions(self) -> Tensor:
        """Positions of A, increasing."""
        return self.positions.index_select(0, self.active_slots)

    @property
    def updated_slots(self) -> Tensor | None:
        """Slots that receive a gradient, or None for all of B."""
        return None if self.explores else self.active_slots

    @property
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
        positions = self.active_positions
        columns = positions % self.num_columns
        order = torch.argsort(columns, stable=True)
        rows = positions.index_select(0, order) // self.num_columns
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


def _version(tensor: Tensor) -> int:
    """How often a tensor was written to; those made in inference mode do not count it."""
    return 0 if tensor.is_inference() else tensor._version


def _csr(major: Tensor, minor: Tensor, slots: Tensor | None, shape: tuple[int, int]) -> Pattern:
    """CSR of elements already ordered by (major, minor)."""
    dtype = index_dtype(max(major.numel(), *shape))
    starts = torch.arange(shape[0] + 1, device=major.device)
    crow = torch.searchsorted(major.contiguous(), starts)
    return Pattern(crow.to(dtype), minor.to(dtype), slots, shape)
