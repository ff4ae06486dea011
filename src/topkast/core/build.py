"""Making a `SparseWeight`: from a dense weight, or from nothing but its shape and initial distribution."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from topkast.core.implicit import ImplicitReservoir
from topkast.core.initial import Initial
from topkast.core.reservoir import DenseTheta, EmptyReservoir, Reservoir, StoredReservoir, Theta
from topkast.core.select import derive_key, generator_for
from topkast.core.sets import Counts, Sets
from topkast.core.weight import SparseWeight


class Chooser(Protocol):
    """What is asked of a method here; see `methods.Method`."""

    @property
    def fetches(self) -> bool: ...

    def choose(self, theta: Theta, counts: Counts, generator: torch.Generator) -> Sets: ...

    def exploration_end(self) -> int | None: ...


@torch.no_grad()
def stored_weight(
    theta: Tensor, method: Chooser, counts: Counts, *, name: str, key: int, requires_grad: bool = True
) -> SparseWeight:
    """From a dense θ⁰, which is kept where the method may fetch from it."""
    flat = theta.detach().reshape(-1)
    sets = method.choose(DenseTheta(flat), counts, generator_for(key, 0)).to(theta.device)
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
        requires_grad=requires_grad,
    )


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
    requires_grad: bool = True,
) -> SparseWeight:
    """With a θ⁰ that exists as a stream only: nothing of dense size is made.

    Raises:
        ValueError: Too many elements, or a dtype that cannot be.
    """
    reservoir = ImplicitReservoir(counts.numel, derive_key(key, "stream"), initial, dtype)
    nothing = (torch.empty(0, dtype=torch.int64), torch.empty(0, dtype=dtype))
    sets = method.choose(reservoir.theta(*nothing), counts, generator_for(key, 0))
    values = reservoir.begin(sets.indices)
    return SparseWeight(
        shape,
        values.to(device),
        sets.to(torch.device(device)),
        reservoir if method.fetches else EmptyReservoir(counts.numel),
        name=name,
        key=key,
        explore_until=method.exploration_end(),
        requires_grad=requires_grad,
    )
