"""Making a `SparseWeight`: from a dense weight, or from nothing but its shape and initial distribution."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from topkast.core.implicit import ImplicitReservoir
from topkast.core.initial import Initial
from topkast.core.moment import Moment
from topkast.core.reservoir import DenseTheta, EmptyReservoir, Reservoir, StoredReservoir
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

    def choose(self, moment: Moment) -> Sets: ...

    def exploration_end(self) -> int | None: ...

    def companion(self, moment: Moment, sets: Sets, dtype: torch.dtype) -> Companion | None: ...


@torch.no_grad()
def stored_moment(theta: Tensor, counts: Counts, *, name: str, key: int) -> Moment:
    """What a method is shown of a dense θ⁰."""
    return Moment(DenseTheta(theta.detach().reshape(-1)), counts, generator_for(key, 0), name=name)


@torch.no_grad()
def stored_weight(
    theta: Tensor,
    method: Chooser,
    counts: Counts,
    *,
    name: str,
    key: int,
    sets: Sets | None = None,
) -> SparseWeight:
    """From a dense θ⁰, which is kept where the method may fetch from it.

    `sets` are the first ones, if they are chosen already.
    """
    flat = theta.detach().reshape(-1)
    moment = stored_moment(theta, counts, name=name, key=key)
    sets = (sets or method.choose(moment)).to(theta.device)
    reservoir: Reservoir = (
        StoredReservoir(flat, sets.indices) if method.fetches else EmptyReservoir(counts.numel)
    )
    return SparseWeight(
        tuple(theta.shape),
        flat.index_select(0, sets.indices),
        sets,
        reservoir,
        name=name,
        key=key,
        explore_until=method.exploration_end(),
        target=counts,
        is_resizable=method.resizes,
        companion=_companion(method, moment, sets, flat),
    )


def implicit_moment(
    initial: Initial, counts: Counts, *, name: str, key: int, dtype: torch.dtype = torch.float32
) -> Moment:
    """What a method is shown of a θ⁰ that exists as a stream only."""
    nothing = (torch.empty(0, dtype=torch.int64), torch.empty(0, dtype=dtype))
    theta = _stream_reservoir(initial, counts, key, dtype).theta(*nothing)
    return Moment(theta, counts, generator_for(key, 0), name=name)


def _stream_reservoir(initial: Initial, counts: Counts, key: int, dtype: torch.dtype) -> ImplicitReservoir:
    return ImplicitReservoir(counts.numel, derive_key(key, "stream"), initial, dtype)


def _companion(method: Chooser, moment: Moment, sets: Sets, like: Tensor) -> Companion | None:
    companion = method.companion(moment, sets, like.dtype)
    return None if companion is None else companion.to(like.device)


@torch.no_grad()
def implicit_weight(
    shape: tuple[int, ...],
    initial: Initial,
    method: Chooser,
    counts: Counts,
    *,
    name: str,
    key: int,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
    sets: Sets | None = None,
) -> SparseWeight:
    """With a θ⁰ that exists as a stream only: nothing of dense size is made.

    Raises:
        ValueError: Too many elements, or a dtype that cannot be.
    """
    reservoir = _stream_reservoir(initial, counts, key, dtype)
    moment = implicit_moment(initial, counts, name=name, key=key, dtype=dtype)
    sets = sets or method.choose(moment)
    values = reservoir.begin(sets.indices)
    return SparseWeight(
        shape,
        values.to(device),
        sets.to(torch.device(device)),
        reservoir if method.fetches else EmptyReservoir(counts.numel),
        name=name,
        key=key,
        explore_until=method.exploration_end(),
        target=counts,
        is_resizable=method.resizes,
        companion=_companion(method, moment, sets, values.to(device)),
    )
