"""Initial distributions of θ whose quantiles are known: what an implicit reservoir can be drawn from."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Initial:
    """A symmetric distribution of θ⁰. Use `Uniform`, `Normal` or `TruncatedNormal`.

    Attributes:
        kind: "uniform" or "normal".
        scale: Bound of the uniform, standard deviation of the normal distribution.
        mass: P(|θ| ≤ limit) of the normal distribution before it was cut off at the limit.
    """

    kind: str
    scale: float
    mass: float = 1.0

    def __post_init__(self) -> None:
        if not (math.isfinite(self.scale) and self.scale > 0):
            raise ValueError(
                f"an initial distribution must have a positive, finite scale, got {self.scale!r}"
            )


def Uniform(bound: float) -> Initial:
    """Uniform on [-bound, bound]."""
    return Initial("uniform", float(bound))


def Normal(std: float) -> Initial:
    """Normal with mean 0, such as Transformer-XL's ``Normal(0.02)``."""
    return Initial("normal", float(std))


def TruncatedNormal(std: float, limit: float) -> Initial:
    """Normal with mean 0 and standard deviation `std` before everything beyond ±limit was cut off.

    ``nn.init.trunc_normal_`` with its defaults is ``TruncatedNormal(1.0, 2.0)``.
    """
    if not (math.isfinite(limit) and limit > 0):
        raise ValueError(f"`limit` must be positive and finite, got {limit!r}")
    return Initial("normal", float(std), math.erf(limit / (std * math.sqrt(2))))


def fans(shape: tuple[int, ...]) -> tuple[int, int]:
    """Fan-in and fan-out of a weight of shape (outputs, inputs, *kernel), as torch counts them."""
    if len(shape) < 2:
        raise ValueError(f"fan-in and fan-out need a weight of at least 2 dimensions, got {shape}")
    field = math.prod(shape[2:])
    return shape[1] * field, shape[0] * field


# By name, from fan-in and fan-out. Kaiming's are for ReLU, as `nn.init` has them by default.
_NAMED: dict[str, Callable[[int, int], Initial]] = {
    "torch": lambda i, _: Uniform(
        1 / math.sqrt(i)
    ),  # what nn.Linear and nn.Conv do: kaiming_uniform with a=√5
    "kaiming_uniform": lambda i, _: Uniform(math.sqrt(6 / i)),
    "kaiming_normal": lambda i, _: Normal(math.sqrt(2 / i)),
    "xavier_uniform": lambda i, o: Uniform(math.sqrt(6 / (i + o))),
    "xavier_normal": lambda i, o: Normal(math.sqrt(2 / (i + o))),
    "lecun_uniform": lambda i, _: Uniform(math.sqrt(3 / i)),
    "lecun_normal": lambda i, _: Normal(math.sqrt(1 / i)),
    "transformer_xl": lambda _i, _o: Normal(0.02),
}


def initial(which: str | Initial, shape: tuple[int, ...]) -> Initial:
    """The distribution that a name stands for, for a weight of this shape.

    Raises:
        ValueError: A name that is not known.
    """
    if isinstance(which, Initial):
        return which
    if which not in _NAMED:
        known = ", ".join(repr(name) for name in _NAMED)
        raise ValueError(
            f"the initial distribution {which!r} is not known to have a quantile function; there are {known}"
            ", topkast.Uniform(bound), topkast.Normal(std) and topkast.TruncatedNormal(std, limit)"
        )
    return _NAMED[which](*fans(shape))
