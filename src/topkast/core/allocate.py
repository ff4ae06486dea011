"""Sharing a number of elements out between layers. Pure arithmetic."""

from __future__ import annotations

import math
from collections.abc import Sequence


def share_out(total: int, wishes: Sequence[float], room: Sequence[int]) -> list[int]:
    """Whole numbers in proportion to `wishes`, none above its `room`, that sum to `total` exactly.

    What a full layer cannot take goes to the others in their proportions; fractions go to the largest
    remainders, ties to the first.

    Raises:
        ValueError: There is not enough room.
    """
    if total > sum(room):
        raise ValueError(f"the layers have room for {sum(room)} more elements, asked for {total}")
    ideal = _proportions(total, wishes, room)
    shares = [min(math.floor(share), most) for share, most in zip(ideal, room, strict=True)]
    while (left := total - sum(shares)) > 0:
        open_layers = [i for i in range(len(room)) if shares[i] < room[i]]
        for i in sorted(open_layers, key=lambda i: shares[i] - ideal[i])[:left]:
            shares[i] += 1
    return shares


def _proportions(total: int, wishes: Sequence[float], room: Sequence[int]) -> list[float]:
    """The same as real numbers: layers that would overflow are filled, the others share what is left."""
    full: set[int] = set()
    while True:
        free = [i for i in range(len(room)) if i not in full]
        left, weight = total - sum(room[i] for i in full), sum(wishes[i] for i in free)
        share = {i: wishes[i] / weight if weight > 0 else 1 / len(free) for i in free}
        over = {i for i in free if left * share[i] > room[i]}
        if not over:
            return [float(room[i]) if i in full else left * share[i] for i in range(len(room))]
        full |= over
