"""Bytes of a model in training, by part, foreseen from sizes. The parts are those of `Handle.memory()`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from topkast.core.moment import Moment
from topkast.core.sets import Counts, Sets
from topkast.kernels.auto import NUM_SIZES
from topkast.kernels.native import gathers_input_grad
from topkast.kernels.plan_size import plan_bytes, table_bytes
from topkast.kernels.positions import index_dtype
from topkast.methods.base import Method
from topkast.planning.survey import Tensors, Weight

PARTS = ("weight", "gradient", "optimizer", "sets", "plan", "reservoir", "companion")


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


def dense_bytes(tensors: Tensors, optimizer: OptimizerKind) -> dict[str, int]:
    """Of dense parameters, by part: e bytes for each of weight and gradient, and e·moments."""
    values = tensors.numel * tensors.element_size
    is_trained = int(tensors.is_trained)
    return {
        "weight": values,
        "gradient": is_trained * values,
        "optimizer": is_trained * (optimizer.per_element * values + optimizer.per_tensor * tensors.count),
    }


def weight_bytes(
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
        sets       (i + 1)·|B|, and 24 + 8·dimensions + 64
        plan       see `kernels.plan_size`
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
        **dense_bytes(trained, optimizer),
        # Positions and flags; dims, step, changed and key in int64; what `auto` has decided.
        "sets": (index + 1) * counts.backward + 8 * (len(weight.shape) + 3) + NUM_SIZES,
        "plan": _compiled_bytes(weight, counts),
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


def _compiled_bytes(weight: Weight, counts: Counts) -> int:
    geometry, size = weight.geometry, 0
    if "embedding" in weight.kinds:
        size += table_bytes(weight.shape[0], counts.backward)
    if geometry is not None and geometry.num_dims < 3:  # in three dimensions there is no native engine
        gathers = gathers_input_grad(weight.shape[2:], geometry)
        size += plan_bytes(
            weight.shape, counts.forward, counts.backward, groups=geometry.groups, gathers=gathers
        )
    if "linear" in weight.kinds:
        size += plan_bytes(weight.shape, counts.forward, counts.backward)
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
    return 56 + (2 * index + weight.element_size) * round(returned * outside)


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
        dense_bytes(Tensors(p.numel(), 1, p.element_size()), optimizer) for p in companion.parameters()
    )
    return sum(b.nbytes for b in companion.buffers()) + sum(sum(parts.values()) for parts in learned)
