"""Making a `SparseWeight`: from a dense weight, or from nothing but its shape and initial distribution."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Protocol

import torch
from torch import Tensor

from topkast.core.floor import Grid
from topkast.core.implicit import ImplicitReservoir
from topkast.core.initial import Initial
from topkast.core.moment import Moment
from topkast.core.reservoir import DenseTheta, EmptyReservoir, Reservoir, StoredReservoir, Theta
from topkast.core.select import derive_key, generator_for
from topkast.core.sets import Counts, Sets
from topkast.core.slots import Companion
from topkast.core.weight import SparseWeight


class Chooser(Protocol):
    """What is asked of a method here; see `methods.Method`."""

    @property
    def fetches(self) -> bool: ...

    @property
    def resizes(self) -> bool: ...

    def sizes(self, step: int, counts: Counts) -> Counts: ...

    def choose(self, moment: Moment) -> Sets: ...

    def exploration_end(self) -> int | None: ...

    def companion(self, moment: Moment, sets: Sets, dtype: torch.dtype) -> Companion | None: ...


class Start(ABC):
    """θ⁰ of one weight that has no sets yet.

    Attributes:
        shape: Of the dense weight.
        dtype: Of its values.
        device: Where the weight will be.
    """

    shape: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device

    @abstractmethod
    def theta(self, key: int) -> Theta:
        """θ⁰, for choosing the first sets. `key` is the weight's."""

    @abstractmethod
    def begin(self, indices: Tensor, key: int, *, fetches: bool) -> tuple[Tensor, Reservoir]:
        """The values on the first B, and what is known of C; it is forgotten unless something `fetches`."""

    @abstractmethod
    def energy(self) -> float:
        """Σθ²."""

    @abstractmethod
    def times(self, factor: float) -> Start:
        """The start at factor·θ⁰."""


class Kept(Start):
    """A dense θ⁰, which is kept where the method may fetch from it."""

    def __init__(self, theta: Tensor) -> None:
        self.shape, self.dtype, self.device = tuple(theta.shape), theta.dtype, theta.device
        self._flat = theta.detach().reshape(-1)

    def theta(self, key: int) -> Theta:
        return DenseTheta(self._flat)

    def begin(self, indices: Tensor, key: int, *, fetches: bool) -> tuple[Tensor, Reservoir]:
        numel = self._flat.numel()
        reservoir = StoredReservoir(self._flat, indices) if fetches else EmptyReservoir(numel)
        return self._flat.index_select(0, indices), reservoir

    def energy(self) -> float:
        return float(torch.linalg.vector_norm(self._flat, dtype=torch.float64)) ** 2

    def times(self, factor: float) -> Kept:
        return Kept((self._flat * factor).view(self.shape))


class Drawn(Start):
    """A θ⁰ that exists as a stream: nothing of dense size is made, unless it is to be stored."""

    def __init__(
        self,
        shape: tuple[int, ...],
        initial: Initial,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
        *,
        is_stored: bool = False,
    ) -> None:
        self.shape, self.dtype, self.device = shape, dtype, torch.device(device)
        self._initial, self._is_stored = initial, is_stored

    def _reservoir(self, key: int) -> ImplicitReservoir:
        numel = torch.Size(self.shape).numel()
        return ImplicitReservoir(numel, derive_key(key, "stream"), self._initial, self.dtype)

    def theta(self, key: int) -> Theta:
        nothing = (torch.empty(0, dtype=torch.int64), torch.empty(0, dtype=self.dtype))
        return self._reservoir(key).theta(*nothing)

    def begin(self, indices: Tensor, key: int, *, fetches: bool) -> tuple[Tensor, Reservoir]:
        reservoir = self._reservoir(key)
        values = reservoir.begin(indices.cpu()).to(self.device)
        if not fetches:
            return values, EmptyReservoir(reservoir.numel)
        return values, StoredReservoir(
            reservoir.dense(indices, values), indices
        ) if self._is_stored else reservoir

    def dense(self, key: int) -> Tensor:
        """All of θ⁰."""
        flat = self._reservoir(key).stream().dense()
        return flat.view(self.shape).to(self.device)

    def energy(self) -> float:
        # Not summed up: magnitudes are quantiles, so it is the expectation but for the last digits.
        return torch.Size(self.shape).numel() * self._initial.variance

    def times(self, factor: float) -> Drawn:
        initial = self._initial.times(factor)
        return Drawn(self.shape, initial, self.dtype, self.device, is_stored=self._is_stored)


@torch.no_grad()
def first_moment(start: Start, counts: Counts, *, name: str, key: int, grid: Grid | None = None) -> Moment:
    """What a method is shown of a weight that is being made.

    Raises:
        ValueError: Too many elements, or a dtype that cannot be drawn.
    """
    grid = grid or Grid.of(start.shape)
    return Moment(start.theta(key), counts, generator_for(key, 0), name=name, grid=grid)


@torch.no_grad()
def scale_start(
    start: Start,
    by: str | None,
    method: Chooser,
    counts: Counts,
    *,
    name: str,
    key: int,
    grid: Grid | None = None,
) -> Start:
    """The start multiplied as `initial.Scaled` says; as it is if `by` is None.

    Raises:
        ValueError: A has nothing but zeros, or see `first_moment`.
    """
    if by is None:
        return start
    if by == "density":
        return start.times(method.sizes(0, counts).forward_density ** -0.5)
    moment = first_moment(start, counts, name=name, key=key, grid=grid)
    kept = float(moment.theta.at(method.choose(moment).forward).double().square().sum())
    if kept == 0:
        raise ValueError("its variance cannot be kept: all that is in A is zero")
    return start.times((start.energy() / kept) ** 0.5)


@torch.no_grad()
def make_weight(
    start: Start,
    method: Chooser,
    counts: Counts,
    *,
    name: str,
    key: int,
    sets: Sets | None = None,
    grid: Grid | None = None,
) -> SparseWeight:
    """A weight with its first sets; `sets` are these, if they are chosen already.

    `grid` says which outputs and inputs its elements join, by default as in a Linear.

    Raises:
        ValueError: Too many elements, a dtype that cannot be drawn, or a floor that cannot be met.
    """
    moment = first_moment(start, counts, name=name, key=key, grid=grid)
    sets = (sets or method.choose(moment)).to(start.device)
    values, reservoir = start.begin(sets.indices, key, fetches=method.fetches)
    companion = method.companion(moment, sets, start.dtype)
    return SparseWeight(
        start.shape,
        values,
        sets,
        reservoir,
        name=name,
        key=key,
        explore_until=method.exploration_end(),
        target=counts,
        is_resizable=method.resizes,
        companion=None if companion is None else companion.to(start.device),
        grid=moment.grid,
    )
