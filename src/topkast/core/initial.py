"""How θ starts: distributions whose quantiles are known, so that they can be drawn without being there.

And starts that are scaled, to make up for what is outside A.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import Literal


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

    @property
    def variance(self) -> float:
        """Of one element: b²/3 of a uniform, σ² of a normal distribution, less where that is cut off."""
        if self.kind == "uniform":
            return self.scale**2 / 3
        if self.mass == 1:
            return self.scale**2
        normal = NormalDist()
        limit = normal.inv_cdf((1 + self.mass) / 2)  # in units of σ
        return self.scale**2 * (1 - 2 * limit * normal.pdf(limit) / self.mass)

    def times(self, factor: float) -> Initial:
        """The distribution of factor·θ."""
        return replace(self, scale=self.scale * factor)


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


@dataclass(frozen=True)
class Scaled:
    """A start that is multiplied, layer by layer, to make up for what is outside A.

    Example:
        >>> Scaled("lecun_normal", by="density")
        Scaled(init='lecun_normal', by='density')

    Attributes:
        init: What is multiplied: a name or a distribution. None is the layer's own start: with stored weights
            those that are there.
        by: "variance": by √(Σθ² / Σ_A θ²), so that A has the sum of squares that all of θ had, and a layer's
            outputs keep their variance. "density": by 1/√D, as SμPar does (arXiv 2405.15743). That is the
            same for a random A, and more for a Top-K one, which has the largest weights.
    """

    init: str | Initial | None = None
    by: Literal["variance", "density"] = "variance"

    def __post_init__(self) -> None:
        if self.by not in ("variance", "density"):
            raise ValueError(f"`by` must be 'variance' or 'density', got {self.by!r}")
        if not (self.init is None or isinstance(self.init, str | Initial)):
            raise TypeError(f"`init` must be a name or a distribution, got {self.init!r}")


How = str | Initial | Scaled
"""How a layer starts."""

# Names of scaled starts; "supar:lecun_normal" is that of another start than the layer's own.
_SCALED: dict[str, Literal["variance", "density"]] = {"keep_variance": "variance", "supar": "density"}


def parts_of(how: How | None) -> tuple[str | Initial | None, Literal["variance", "density"] | None]:
    """What is drawn, None for the layer's own start, and by what it is scaled, None for not at all.

    Example:
        >>> parts_of("own"), parts_of("keep_variance:lecun_normal")
        ((None, None), ('lecun_normal', 'variance'))
    """
    if isinstance(how, Scaled):
        return parts_of(how.init)[0], how.by
    if not isinstance(how, str):
        return how, None
    first, _, rest = how.partition(":")
    if first in _SCALED:
        return parts_of(rest or None)[0], _SCALED[first]
    return None if how == "own" else how, None


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
            ", topkast.Uniform(bound), topkast.Normal(std) and topkast.TruncatedNormal(std, limit); scaled "
            "ones are 'keep_variance', 'supar', 'keep_variance:NAME' and 'supar:NAME'"
        )
    return _NAMED[which](*fans(shape))
