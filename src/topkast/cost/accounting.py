"""What training costs, by layer and pass, beside the same network dense. Pure arithmetic.

A FLOP is half a multiply-add, as `torch.utils.flop_counter` counts: y = x·Wᵀ for T tokens and a weight of n
elements takes 2·T·n. Biases, norms, activations and the optimizer are not counted, there or here.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction

from topkast.core.sets import Counts
from topkast.text import COUNTS, aligned, ruled, scaled, shape_text

_PASSES = ("forward", "input_grad", "weight_grad", "total")


@dataclass(frozen=True)
class LayerFlops:
    """The three products of one weight, at the densities they are computed at.

    A layer that was used several times has the sum, so it goes by the weight and not by the call.

    Attributes:
        name: Qualified name of the layer.
        shape: Of the dense weight.
        dense_forward: FLOPs of the forward product if the layer were dense.
        dense_input_grad: Of the input gradient; 0 where no input gradient is wanted, as in a first layer.
        dense_weight_grad: Of the weight gradient; 0 if the weight is not trained.
        forward_density: Of the forward product and the input gradient, D.
        weight_grad_density: Of the weight gradient, D + M.
    """

    name: str
    shape: tuple[int, ...]
    dense_forward: int
    dense_input_grad: int
    dense_weight_grad: int
    forward_density: float = 1.0
    weight_grad_density: float = 1.0

    @property
    def numel(self) -> int:
        """n, the elements of the dense weight."""
        return math.prod(self.shape)

    @property
    def forward(self) -> int:
        """D · dense."""
        return _share(self.dense_forward, self.forward_density)

    @property
    def input_grad(self) -> int:
        """D · dense: the input gradient uses the forward set too."""
        return _share(self.dense_input_grad, self.forward_density)

    @property
    def weight_grad(self) -> int:
        """(D + M) · dense."""
        return _share(self.dense_weight_grad, self.weight_grad_density)

    @property
    def total(self) -> int:
        """All three products."""
        return self.forward + self.input_grad + self.weight_grad

    @property
    def dense_total(self) -> int:
        """All three products of the dense layer."""
        return self.dense_forward + self.dense_input_grad + self.dense_weight_grad

    def at(self, forward_density: float, weight_grad_density: float) -> LayerFlops:
        """The same layer at other densities."""
        return replace(self, forward_density=forward_density, weight_grad_density=weight_grad_density)


@dataclass(frozen=True)
class Flops:
    """What a step, or a whole run, costs. ``str()`` gives a table.

    Attributes:
        layers: One entry per weight, sparse or dense.
        other_forward: Products without a weight, such as attention's; dense in both networks.
        other_backward: Their backward pass. It counts as input gradient, since they have no weight.
    """

    layers: tuple[LayerFlops, ...]
    other_forward: int = 0
    other_backward: int = 0

    @property
    def forward(self) -> int:
        """The forward pass."""
        return self.other_forward + sum(layer.forward for layer in self.layers)

    @property
    def input_grad(self) -> int:
        """The gradients of activations."""
        return self.other_backward + sum(layer.input_grad for layer in self.layers)

    @property
    def weight_grad(self) -> int:
        """The gradients of weights."""
        return sum(layer.weight_grad for layer in self.layers)

    @property
    def total(self) -> int:
        """Forward and backward."""
        return self.forward + self.input_grad + self.weight_grad

    @property
    def dense_forward(self) -> int:
        """The dense network's forward pass."""
        return self.other_forward + sum(layer.dense_forward for layer in self.layers)

    @property
    def dense_total(self) -> int:
        """The dense network's forward and backward pass."""
        others = self.other_forward + self.other_backward
        return others + sum(layer.dense_total for layer in self.layers)

    @property
    def forward_fraction(self) -> float:
        """Forward pass over the dense one: what inference costs."""
        return _ratio(self.forward, self.dense_forward)

    @property
    def training_fraction(self) -> float:
        """Forward and backward over the dense ones: what training costs."""
        return _ratio(self.total, self.dense_total)

    def at(self, densities: Mapping[str, tuple[float, float]]) -> Flops:
        """The same network with other densities (forward, weight gradient) in the layers that are named.

        Raises:
            ValueError: A name that is no layer.
        """
        unknown = set(densities) - {layer.name for layer in self.layers}
        if unknown:
            raise ValueError(f"`densities` names {sorted(unknown)[0]!r}, which is no layer that was counted")
        layers = [x.at(*densities[x.name]) if x.name in densities else x for x in self.layers]
        return replace(self, layers=tuple(layers))

    def __str__(self) -> str:
        rows = [("layer", "shape", "D", "D+M", *_PASSES, "dense", "share")]
        rows += [_row(layer) for layer in self.layers]
        others = (self.other_forward, self.other_backward, 0, self.other_forward + self.other_backward)
        rows.append(("other", "", "", "", *map(_size, others), _size(others[-1]), ""))
        sums = [_size(getattr(self, name)) for name in _PASSES]
        share = f"{self.training_fraction:.2%}"
        rows.append(("all", "", "", "", *sums, _size(self.dense_total), share))
        lines = [line.rstrip() for line in aligned(rows, left=(0, 1))]
        return "\n".join(ruled([lines[0].replace("_", " "), *lines[1:]]))


def over_run(
    step: Flops,
    densities: Callable[[int, Counts], tuple[float, float]],
    counts: Mapping[str, Counts],
    num_steps: int,
) -> Flops:
    """What steps 1 … N cost together; in each layer Σ over t of dense · density(t).

    The result has N times the dense cost, at the mean of the densities.

    Args:
        step: One step. Its densities are kept for layers that are not in `counts`: they are dense.
        densities: A method's `densities(step, counts)`: of forward and input gradient, and of the weight
            gradient; step 1 is the first.
        counts: |A| and |B| of the sparse layers, by name.
        num_steps: N, at least 1.

    Raises:
        ValueError: `num_steps` is less than 1, or `counts` names no layer of `step`.
    """
    if num_steps < 1:
        raise ValueError(f"`num_steps` must be at least 1, got {num_steps!r}")
    # Layers of one shape usually have the same counts, so that most need not be asked about.
    means = {c: _mean(densities, c, num_steps) for c in set(counts.values())}
    sparse = step.at({name: means[c] for name, c in counts.items()})
    layers = tuple(
        replace(
            layer,
            dense_forward=num_steps * layer.dense_forward,
            dense_input_grad=num_steps * layer.dense_input_grad,
            dense_weight_grad=num_steps * layer.dense_weight_grad,
        )
        for layer in sparse.layers
    )
    return Flops(layers, num_steps * step.other_forward, num_steps * step.other_backward)


def _mean(
    densities: Callable[[int, Counts], tuple[float, float]], counts: Counts, num_steps: int
) -> tuple[float, float]:
    # Few pairs differ: counting them first leaves next to nothing to add up, without rounding.
    times = Counter(densities(step, counts) for step in range(1, num_steps + 1))
    forward = math.fsum(n * pair[0] for pair, n in times.items())
    backward = math.fsum(n * pair[1] for pair, n in times.items())
    return forward / num_steps, backward / num_steps


def _share(dense: int, density: float) -> int:
    # Exact, also where the FLOPs of a run no longer fit into a float's 53 bits.
    return dense if density == 1.0 else round(dense * Fraction(density))


def _ratio(part: int, whole: int) -> float:
    return part / whole if whole else 1.0


def _row(layer: LayerFlops) -> tuple[str, ...]:
    densities = (f"{layer.forward_density:.2%}", f"{layer.weight_grad_density:.2%}")
    sums = [_size(getattr(layer, name)) for name in _PASSES]
    share = f"{_ratio(layer.total, layer.dense_total):.2%}" if layer.dense_total else ""
    return (layer.name, shape_text(layer.shape), *densities, *sums, _size(layer.dense_total), share)


def _size(count: float) -> str:
    return scaled(count, COUNTS)
