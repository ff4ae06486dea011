"""Checking the state of an implicit reservoir before it is loaded: it may come from anywhere."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from topkast.core.loading import all_finite
from topkast.core.select import match
from topkast.kernels.positions import check_positions
from topkast.kernels.stream import KINDS, Stream

_NUMBERS = ("key", "cursor", "first_cursor", "activated")
_RANKS = ("early", "first_early")


def problem(numel: int, dtype: torch.dtype, state: Mapping[str, Tensor], indices: Tensor) -> str | None:
    """Says what is wrong with a state whose B is at `indices`, or None when it is sound.

    The rule that ties everything together: what is known, B and the returned elements, is exactly the ranks
    below the cursor and the early ones. It holds for no other key, size or distribution.
    """
    return (
        _problem_of_numbers(numel, state)
        or _problem_of_initial(state["initial"])
        or _problem_of_ranks(numel, state)
        or _problem_of_returned(numel, dtype, state, indices)
        or _problem_of_knowledge(numel, dtype, state, indices)
    )


def _problem_of_numbers(numel: int, state: Mapping[str, Tensor]) -> str | None:
    for name in _NUMBERS:
        number = state[name]
        if number.ndim != 0 or number.dtype != torch.int64:
            return f"{name} must be one int64 number"
        if int(number) < 0:
            return f"{name} must not be negative, got {int(number)}"
        if name != "key" and int(number) > numel:
            return f"{name} must lie in [0, {numel}], got {int(number)}"
    return None


def _problem_of_initial(initial: Tensor) -> str | None:
    if tuple(initial.shape) != (3,) or initial.dtype != torch.float64:
        return "initial must be three float64 numbers: kind, scale, mass"
    kind, scale, mass = initial.tolist()
    if kind not in range(len(KINDS)):
        return f"initial must begin with 0 (uniform) or 1 (normal), got {kind}"
    if not (math.isfinite(scale) and scale > 0):
        return f"the initial scale must be positive and finite, got {scale}"
    return None if 0 < mass <= 1 else f"the initial mass must lie in (0, 1], got {mass}"


def _problem_of_ranks(numel: int, state: Mapping[str, Tensor]) -> str | None:
    for name in _RANKS:
        ranks = state[name]
        wrong = _problem_of_positions(name, ranks, numel)
        if wrong is not None:
            return wrong
        start = int(state["cursor" if name == "early" else "first_cursor"])
        if ranks.numel() and int(ranks[0]) < start:
            return f"{name} must hold ranks from the cursor ({start}) on, got {int(ranks[0])}"
    return _problem_of_positions("retired", state["retired"], numel)


def _problem_of_positions(name: str, positions: Tensor, numel: int) -> str | None:
    flags = torch.zeros(positions.shape, dtype=torch.bool)
    wrong = check_positions(positions, flags, numel)
    return None if wrong is None else wrong.replace("indices", name, 1)


def _problem_of_returned(
    numel: int, dtype: torch.dtype, state: Mapping[str, Tensor], indices: Tensor
) -> str | None:
    positions, values = state["returned_positions"], state["returned_values"]
    wrong = _problem_of_positions("returned_positions", positions, numel)
    if wrong is not None:
        return wrong
    if values.shape != positions.shape or not values.is_floating_point():
        return f"returned_values must hold one number per returned position ({positions.numel()})"
    if not all_finite(values, dtype):
        return f"reservoir.returned_values has numbers that are not finite in {dtype}"
    _, _, only_returned = match(positions.long(), indices.long())
    if only_returned.numel() != positions.numel():
        return "returned_positions must not be in B"
    return None


def _problem_of_knowledge(
    numel: int, dtype: torch.dtype, state: Mapping[str, Tensor], indices: Tensor
) -> str | None:
    kind, scale, mass = state["initial"].tolist()
    stream = Stream(numel, int(state["key"]), KINDS[int(kind)], scale, mass, dtype)
    known = torch.cat([stream.ranks(indices), stream.ranks(state["returned_positions"])]).sort().values
    cursor = int(state["cursor"])
    below = known[:cursor]
    if (
        below.numel() != cursor
        or (cursor and int(below[-1]) != cursor - 1)
        or not torch.equal(known[cursor:], state["early"])
    ):
        return (
            f"key, cursor ({cursor}) and early do not fit the positions of B and of the returned elements: "
            "the state was altered, or is that of another layer"
        )
    return None
