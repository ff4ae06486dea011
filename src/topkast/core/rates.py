"""Learning rates of sparse values: a rule by density, and layers that have a factor of their own."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

from topkast.core.distribution import matches, nearest
from topkast.core.sets import Counts

# A name, or the power p itself.
Rate = str | float

# By name, the power p in lr·D⁻ᵖ.
POWERS = {"same": 0.0, "sqrt": 0.5, "inverse": 1.0}


def power_of(rate: Rate) -> float:
    """The power p that a rule stands for: a sparse layer's learning rate is lr·D⁻ᵖ.

    Example:
        >>> power_of("sqrt"), power_of(0.75)
        (0.5, 0.75)

    Raises:
        TypeError: Neither a name nor a number.
        ValueError: A name that is not known, or a power that is negative or not finite.
    """
    if isinstance(rate, str):
        if rate not in POWERS:
            raise ValueError(
                f"`rate` must be one of {', '.join(map(repr, POWERS))}, or the power p of lr·density⁻ᵖ, "
                f"got {rate!r}"
            )
        return POWERS[rate]
    _check_number("`rate`", "the power p of lr·density⁻ᵖ", rate)
    return float(rate)


def check_lr(lr: float) -> None:
    """Raises unless `lr` is a learning rate."""
    _check_number("`lr`", "the learning rate of the dense network", lr)


def mean_density(counts: Iterable[Counts]) -> float:
    """Σ|A| / Σn of some weights; 1 without any."""
    sizes = [(count.forward, count.numel) for count in counts]
    numel = sum(n for _, n in sizes)
    return sum(a for a, _ in sizes) / numel if numel else 1.0


def factor_of(density: float, rate: Rate) -> float:
    """D⁻ᵖ. Densities count to three digits: layers of one sparsity may differ by an element."""
    return float(f"{density:.3g}") ** -power_of(rate)


def factors_of(
    densities: Mapping[str, float],
    rate: Rate,
    factors: Mapping[str, float],
    aliases: Mapping[str, Sequence[str]],
) -> dict[str, float]:
    """What each weight's learning rate is, as a multiple of the dense network's: D⁻ᵖ by its own density D.

    Layers of one sparsity share a factor, and with it a parameter group; see `factor_of`.

    Args:
        densities: Name → forward density |A|/n.
        rate: The rule, see `power_of`.
        factors: Name, glob or containing module → factor in place of the rule's. The last that matches
            counts.
        aliases: Name → the names of all layers that share the weight.

    Raises:
        TypeError: See `power_of`.
        ValueError: See `power_of`, or a pattern that matches no sparse layer.
    """
    every = [alias for names in aliases.values() for alias in names]
    for pattern, factor in factors.items():
        _check_number(f"`factors[{pattern!r}]`", "a factor of the learning rate", factor)
        if not any(matches(pattern, name) for name in every):
            raise ValueError(
                f"`factors` names {pattern!r}, which matches no sparse layer; "
                f"there are {nearest(pattern, every)}"
            )
    chosen = {name: factor_of(density, rate) for name, density in densities.items()}
    for pattern, factor in factors.items():
        for name in chosen:
            if any(matches(pattern, alias) for alias in aliases[name]):
                chosen[name] = float(factor)
    return chosen


def _check_number(argument: str, what: str, value: float) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{argument} must be {what}, a number, got {value!r}")
    if not math.isfinite(value) or value < 0:
        raise ValueError(f"{argument} must be {what}, finite and at least 0, got {value!r}")
