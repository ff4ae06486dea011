"""How density is spread over the layers: |A| and |B| of each, from one pair of sparsities.

Pure arithmetic on shapes. "uniform" is exact in each layer, |A| = round(D·n); "er" and "erk", and all of them
where the whole model is counted, are exact in total, Σ|A| = round(D·Σn) to the element.
"""

from __future__ import annotations

import difflib
import fnmatch
import math
from collections.abc import Callable, Iterable, Mapping, Sequence

from topkast.core.sets import Counts

Shapes = Mapping[str, tuple[int, ...]]
Distribution = str | Mapping[str, float | tuple[float, float]]


def nearest(name: str, known: Iterable[str]) -> str:
    """A hint for a name that matched nothing."""
    known = list(known)
    close = difflib.get_close_matches(name, known, n=3, cutoff=0.4) or known[:8]
    return ", ".join(repr(c) for c in close) + (", …" if len(known) > len(close) else "")


def matches(pattern: str, name: str) -> bool:
    """Whether `pattern` is the layer's name, a glob for it, or a module that contains it."""
    return name == pattern or name.startswith(pattern + ".") or fnmatch.fnmatchcase(name, pattern)


def spread(
    distribution: Distribution,
    shapes: Shapes,
    forward_sparsity: float,
    backward_sparsity: float,
    num_dense: int | None = None,
    aliases: Mapping[str, list[str]] | None = None,
) -> dict[str, Counts]:
    """Counts for every layer.

    Args:
        distribution: "uniform" gives every layer the same sparsity. "er" (Erdős–Rényi) gives a layer
            density in proportion to (n_in + n_out)/(n_in·n_out). "erk" (Erdős–Rényi-Kernel) takes
            Σ dims / Π dims of the whole shape instead. Both cap layers at dense and leave at least one
            element in each. A mapping from names or globs to a forward sparsity, or to a (forward,
            backward) pair, overrides single layers and leaves the others uniform.
        shapes: Shape of each layer's weight.
        forward_sparsity: 1 - D.
        backward_sparsity: 1 - D - M.
        num_dense: If given, the sparsities count the whole model, and this many parameters of it stay
            dense: the sparse layers make up for them, so that the total is exact.
        aliases: All the names a layer goes by (tied layers have several), for matching.

    Raises:
        ValueError: An unknown distribution, a name that matches no layer, or a budget of fewer elements
            than there are layers, such as one that the dense parameters alone exceed.
    """
    forward, backward = 1.0 - forward_sparsity, 1.0 - backward_sparsity
    if isinstance(distribution, Mapping):
        if num_dense is not None:
            raise ValueError(
                "`budget='model'` needs `distribution` 'uniform', 'er' or 'erk': "
                "a mapping fixes the counts itself"
            )
        return _from_mapping(distribution, shapes, forward, backward, aliases or {})
    if distribution not in _DENSITIES:
        known = ", ".join(repr(name) for name in _DENSITIES)
        raise ValueError(
            f"`distribution` must be one of {known} or a mapping from layer names to sparsities, "
            f"got {distribution!r}"
        )
    sizes = {name: math.prod(shape) for name, shape in shapes.items()}
    if distribution == "uniform" and num_dense is None:
        return {n: Counts.from_density(sizes[n], forward, backward) for n in shapes}
    densities, rest = _DENSITIES[distribution], num_dense or 0
    total = sum(sizes.values()) + rest
    budgets = [round(density * total) - rest for density in (forward, backward)]
    _check_budget(budgets[0], total, rest, len(shapes))
    num_b = _exact(densities, shapes, sizes, budgets[1])
    num_a = _exact(densities, shapes, num_b, budgets[0])  # B is as far as A can go
    return {n: Counts(sizes[n], num_a[n], num_b[n]) for n in shapes}


def _uniform(shapes: Shapes, density: float) -> dict[str, float]:
    return dict.fromkeys(shapes, density)


def _er(shapes: Shapes, density: float) -> dict[str, float]:
    """Erdős–Rényi densities (Mocanu et al. 2018): ε·(n_in + n_out)/(n_in·n_out), whatever the kernel."""
    return _in_proportion({n: sum(s[:2]) / math.prod(s[:2]) for n, s in shapes.items()}, shapes, density)


def _erk(shapes: Shapes, density: float) -> dict[str, float]:
    """Erdős–Rényi-Kernel densities (Evci et al. 2020): ε·Σ dims/Π dims, the kernel's sizes among them."""
    return _in_proportion({n: sum(s) / math.prod(s) for n, s in shapes.items()}, shapes, density)


def _in_proportion(raw: Mapping[str, float], shapes: Shapes, density: float) -> dict[str, float]:
    """min(1, ε·raw), with ε such that the whole has the given density.

    Layers that would exceed density 1 are made dense and ε is solved again for the others.
    """
    size = {name: math.prod(shape) for name, shape in shapes.items()}
    budget = density * sum(size.values())
    dense: set[str] = set()
    while True:
        free = [name for name in shapes if name not in dense]
        left = budget - sum(size[name] for name in dense)
        weight = sum(raw[name] * size[name] for name in free)
        epsilon = left / weight if weight else 0.0
        over = {name for name in free if epsilon * raw[name] > 1.0}
        if not over:
            return {name: 1.0 if name in dense else epsilon * raw[name] for name in shapes}
        dense |= over


_DENSITIES: dict[str, Callable[[Shapes, float], dict[str, float]]] = {
    "uniform": _uniform,
    "er": _er,
    "erk": _erk,
}


def _check_budget(budget: int, total: int, num_dense: int, num_layers: int) -> None:
    if budget < num_layers:
        kept = f", {num_dense} of them dense" if num_dense else ""
        raise ValueError(
            f"the sparsity leaves {budget} elements (of {total} parameters{kept}) for {num_layers} sparse "
            "layers, which need at least one each: lower the sparsity, or leave fewer layers dense"
        )


def _exact(
    densities: Callable[[Shapes, float], dict[str, float]],
    shapes: Shapes,
    most: Mapping[str, int],
    budget: int,
) -> dict[str, int]:
    """Counts from 1 to `most` that sum to `budget`: rounded down, the rest to the largest remainders."""
    wanted = densities(shapes, budget / sum(math.prod(shape) for shape in shapes.values()))
    ideal = {name: wanted[name] * math.prod(shapes[name]) for name in shapes}
    counts = {name: min(most[name], max(1, math.floor(ideal[name]))) for name in shapes}
    by_remainder = sorted(shapes, key=lambda name: ideal[name] - counts[name], reverse=True)
    while (missing := budget - sum(counts.values())) != 0:
        step = 1 if missing > 0 else -1
        movable = [n for n in by_remainder if 1 <= counts[n] + step <= most[n]]
        for name in (movable if step > 0 else movable[::-1])[: abs(missing)]:
            counts[name] += step
    return counts


def _from_mapping(
    distribution: Mapping[str, float | tuple[float, float]],
    shapes: Shapes,
    forward: float,
    backward: float,
    aliases: Mapping[str, list[str]],
) -> dict[str, Counts]:
    """Later entries win. A forward sparsity alone keeps the ratio of B to A."""
    chosen = dict.fromkeys(shapes, (forward, backward))
    for pattern, sparsity in distribution.items():
        hits = [n for n in shapes if any(matches(pattern, a) for a in aliases.get(n, [n]))]
        if not hits:
            raise ValueError(
                f"`distribution` names {pattern!r}, which matches no sparse layer; "
                f"there are {nearest(pattern, shapes)}"
            )
        pair = _densities_of(pattern, sparsity, backward / forward)
        chosen.update(dict.fromkeys(hits, pair))
    return {n: Counts.from_density(math.prod(shapes[n]), *chosen[n]) for n in shapes}


def _densities_of(pattern: str, sparsity: float | tuple[float, float], ratio: float) -> tuple[float, float]:
    where = f"`distribution[{pattern!r}]`"
    if isinstance(sparsity, tuple):
        forward, backward = sparsity
        check_sparsities(forward, backward, f"{where} forward", f"{where} backward")
        return 1.0 - forward, 1.0 - backward
    check_sparsities(sparsity, sparsity, where, where)
    return 1.0 - sparsity, min(1.0, (1.0 - sparsity) * ratio)


def check_sparsities(forward: float, backward: float, forward_name: str, backward_name: str) -> None:
    """Raises unless both are sparsities and B can contain A."""
    for name, value in ((forward_name, forward), (backward_name, backward)):
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise TypeError(f"{name} must be a number in [0, 1), got {value!r}")
        if not 0.0 <= value < 1.0:  # also refuses NaN
            raise ValueError(
                f"{name} must be in [0, 1), got {value!r}; it is the share of zeros, 0.9 for 90 %"
            )
    if backward > forward:
        raise ValueError(
            f"{backward_name} must not exceed {forward_name} ({forward!r}), got {backward!r}: "
            "the backward set B contains the forward set A"
        )


# ---- sharing a number of elements out between layers ----------------------------------------------------


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
