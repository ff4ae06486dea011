"""`find_coefficient`: which factor of a penalty gives a wanted sparsity, where the sparsity is learned."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from topkast.core.distribution import check_sparsities


@dataclass(frozen=True)
class Found:
    """What a search came to.

    Attributes:
        coefficient: The one whose run came nearest.
        sparsity: Of that run, as measured.
        tried: Every coefficient that was tried, with its sparsity, in order.
    """

    coefficient: float
    sparsity: float
    tried: tuple[tuple[float, float], ...]


def find_coefficient(
    train: Callable[[float], float],
    sparsity: float,
    *,
    low: float,
    high: float,
    tolerance: float = 0.002,
    most: int = 12,
) -> Found:
    """Bisects the logarithm of a penalty's factor between `low` and `high`.

    More penalty is taken to give more zeros. Runs may be short, as long as they end as the long one does:
    the coefficient goes with the length of a run.

    Example:
        >>> found = find_coefficient(lambda c: c / (1 + c), 0.9, low=1e-2, high=1e3)
        >>> round(found.coefficient), round(found.sparsity, 2)
        (9, 0.9)

    Args:
        train: Trains with a coefficient and returns the sparsity at the end, as measured.
        sparsity: The one that is wanted.
        low: A coefficient that gives less.
        high: A coefficient that gives more.
        tolerance: How near is near enough.
        most: Runs, at most; the two ends are the first of them.

    Raises:
        ValueError: A bad setting, ends that do not have the wanted sparsity between them, or a run whose
            sparsity is not a share.
    """
    check_sparsities(sparsity, 0.0, "`sparsity`", "`sparsity`")
    if not 0 < low < high < math.inf:
        raise ValueError(f"`low` must be above 0 and below `high`, got {low!r} and {high!r}")
    if not tolerance > 0:
        raise ValueError(f"`tolerance` must be above 0, got {tolerance!r}")
    if most < 2:
        raise ValueError(f"`most` must be at least 2, the runs at both ends, got {most!r}")
    tried: list[tuple[float, float]] = []

    def run(coefficient: float) -> float:
        measured = train(coefficient)
        if not 0 <= measured <= 1:
            raise ValueError(
                f"`train` must return a sparsity from 0 to 1, got {measured!r} with the coefficient "
                f"{coefficient:g}; if the run diverged, give a smaller `high`"
            )
        tried.append((coefficient, measured))
        return measured

    _check_end("low", run(low), sparsity, tolerance)
    _check_end("high", run(high), sparsity, tolerance)
    while len(tried) < most and abs(_nearest(tried, sparsity)[1] - sparsity) > tolerance:
        middle = math.sqrt(low * high)
        if run(middle) < sparsity:
            low = middle
        else:
            high = middle
    return Found(*_nearest(tried, sparsity), tuple(tried))


def _nearest(tried: list[tuple[float, float]], sparsity: float) -> tuple[float, float]:
    return min(tried, key=lambda one: abs(one[1] - sparsity))


def _check_end(name: str, measured: float, sparsity: float, tolerance: float) -> None:
    """Raises ValueError if an end of the search is on the wrong side of what is wanted."""
    excess = measured - sparsity if name == "low" else sparsity - measured
    if excess > tolerance:
        than, other = ("more", "smaller") if name == "low" else ("less", "larger")
        raise ValueError(
            f"`{name}` gives a sparsity of {measured:.4g}, {than} than the wanted {sparsity:g}: "
            f"try a {other} one"
        )
