"""What workers send each other when each trains the whole model on its own part of a batch."""

from __future__ import annotations

from topkast.methods.base import Method


def ring_bytes(num_bytes: int, workers: int) -> float:
    """What each worker sends to add up `num_bytes` over all of them in a ring: 2·(W - 1)/W of it.

    W - 1 times a share of 1/W to add up, and as often to hand the sums round (Patarasuk and Yuan 2009).
    """
    return 2 * (workers - 1) / workers * num_bytes


def seconds(num_bytes: float, gigabits: float) -> float:
    """8·bytes over the speed of a link in Gbit/s (10⁹ bits), as if nothing else used it."""
    return 8 * num_bytes / (1e9 * gigabits)


def why_alone(method: Method) -> str | None:
    """Why a method cannot run with several workers, as `Handle.attach` refuses it, or None if it can."""
    return "changes the sizes of its sets" if method.resizes else None
