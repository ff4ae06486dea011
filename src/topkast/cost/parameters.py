"""How many parameters a sparse model has, in all and by layer, as data and as a table."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import nn

from topkast.core.weight import SparseWeight
from topkast.nn.base import SparseLayer
from topkast.text import aligned, narrow, ruled, shape_text


@dataclass(frozen=True)
class Parameters:
    """How many parameters a sparse network has, as the papers' tables count them.

    Attributes:
        sparse: Elements that the forward pass uses in evaluation, Σ|A| without what a method makes zero.
        sparse_numel: Elements of the sparse layers' weights if they were dense, Σn.
        rest: Dense layers, biases and norms.
    """

    sparse: int
    sparse_numel: int
    rest: int

    @property
    def used(self) -> int:
        """What the trained network computes with."""
        return self.sparse + self.rest

    @property
    def dense(self) -> int:
        """What the dense network has."""
        return self.sparse_numel + self.rest

    @property
    def fraction(self) -> float:
        """Used over dense."""
        return self.used / self.dense if self.dense else 1.0


def parameters(model: nn.Module, weights: Mapping[str, SparseWeight]) -> Parameters:
    """Σ|A| and everything that is dense, beside the dense model's. Tied weights count once.

    What a method learns for every weight, such as a gate, is no parameter of the trained network.
    """
    ours = {id(weight.values) for weight in weights.values()}
    for weight in weights.values():
        ours |= {id(p) for p in (() if weight.companion is None else weight.companion.learned())}
    return Parameters(
        sparse=sum(evaluated(weight) for weight in weights.values()),
        sparse_numel=sum(weight.numel() for weight in weights.values()),
        rest=sum(p.numel() for p in model.parameters() if id(p) not in ours),
    )


def evaluated(weight: SparseWeight) -> int:
    """How many elements the network uses in evaluation: |A|, or what the method does not make zero of it."""
    if weight.companion is None or not weight.companion.cuts:
        return weight.counts.forward
    return int(torch.count_nonzero(weight.evaluated().detach()[weight.active]))


@dataclass(frozen=True)
class LayerStats:
    """One sparse weight at one moment.

    Attributes:
        shape: Of the dense weight.
        numel: n, its elements.
        forward: |A|.
        backward: |B|; |A| once exploration has ended.
        forward_density: D = |A|/n.
        backward_density: D + M = |B|/n.
        step: Optimizer steps taken.
        changed: Share of all n elements that entered or left A at the last refresh: Σ(m - m')²/n, the
            measure of the paper's Figure 3a.
        exchanged: Share of all n elements that entered B at the last exchange.
        early_exchanges: How many exchanges came before their time, so that A stayed the Top-K of θ.
        reservoir_used: Share of the initial C that has been in B.
        reservoir_activated: Share of the initial C that has been in A when sets were exchanged, as in the
            paper's Figure 3b.
        bytes: By part: values, gradient, indices, reservoir; and "dense", the dense weight's.
        evaluated: How many elements are used in evaluation: |A|, or fewer where the method makes some of them
            zero then, as `L0` and `VariationalDropout` do.
        evaluated_density: Their share of all n, measured.
    """

    shape: tuple[int, ...]
    numel: int
    forward: int
    backward: int
    forward_density: float
    backward_density: float
    step: int
    changed: float
    exchanged: float
    early_exchanges: int
    reservoir_used: float
    reservoir_activated: float
    bytes: dict[str, int]
    evaluated: int
    evaluated_density: float


class Stats(dict[str, LayerStats]):
    """Name of a sparse weight → how it is; `print` shows a table."""

    def __str__(self) -> str:
        rows = [("layer", "shape", "|A|", "D", "|B|", "step", "A changed", "C used")]
        for name, one in self.items():
            densities = (f"{one.forward:,}", _percent(one.forward_density), f"{one.backward:,}")
            shares = (_percent(one.changed), _percent(one.reservoir_used))
            rows.append((name, shape_text(one.shape), *densities, f"{one.step:,}", *shares))
        return "\n".join([*narrow(rows), *_cut_line(self.values())])


def layer_stats(weight: SparseWeight) -> LayerStats:
    counts = weight.counts
    backward = counts.backward if weight.explores else counts.forward
    used, activated = weight.reservoir.used()
    num_evaluated = evaluated(weight)
    return LayerStats(
        shape=tuple(weight.shape),
        numel=counts.numel,
        forward=counts.forward,
        backward=backward,
        forward_density=counts.forward_density,
        backward_density=backward / counts.numel,
        step=weight.steps,
        changed=int(weight.changed) / counts.numel,
        exchanged=int(weight.exchanged) / counts.numel,
        early_exchanges=int(weight.early),
        reservoir_used=used,
        reservoir_activated=activated,
        bytes=_bytes(weight),
        evaluated=num_evaluated,
        evaluated_density=num_evaluated / counts.numel,
    )


def _cut_line(stats: Iterable[LayerStats]) -> list[str]:
    """What is left of A in evaluation, if that is not all."""
    all_of_them = list(stats)
    left, a, n = (sum(getattr(s, part) for s in all_of_them) for part in ("evaluated", "forward", "numel"))
    return [f"not zero in evaluation: {left:,} of {n:,} ({_percent(left / n)})"] if left < a else []


def _bytes(weight: SparseWeight) -> dict[str, int]:
    grad = weight.values.grad
    return {
        "values": weight.values.nbytes,
        "gradient": 0 if grad is None else grad.nbytes,
        "indices": weight.indices.nbytes + weight.active.nbytes,
        "reservoir": sum(b.nbytes for b in weight.reservoir.buffers()),
        "dense": weight.numel() * weight.values.element_size(),
    }


_HEADER = ("layer", "kind", "shape", "|A|", "forward", "|B|", "backward", "engine")


def layer_table(
    layers: Mapping[str, SparseLayer],
    weights: Mapping[str, SparseWeight],
    left_dense: Mapping[str, str],
    fallbacks: Mapping[str, str],
    model: nn.Module,
) -> str:
    """What `print(handle)` shows: a line per layer, the total, and what was left dense and why."""
    owner = {id(weight): name for name, weight in weights.items()}
    rows = [_HEADER, *(_row(name, layer, owner) for name, layer in layers.items())]
    rows.append(_total_row(weights))
    # Words to the left, numbers to the right.
    body = ruled([line.rstrip() for line in aligned(rows, left=(0, 1, 2, 7))])
    body += [f"left dense: {name} ({reason})" for name, reason in left_dense.items()]
    body += [f"other engine: {name} uses {reason}" for name, reason in fallbacks.items()]
    body += _cut_line(layer_stats(weight) for weight in weights.values())
    body.append(_model_line(weights, model))
    return "\n".join(body)


def _row(name: str, layer: SparseLayer, owner: Mapping[int, str]) -> tuple[str, ...]:
    weight = layer.weight
    shape = shape_text(weight.shape)
    if owner[id(weight)] != name:
        tied = f"= {owner[id(weight)]}"
        return (name, layer.label, shape, tied, "", "", "", weight.describe_engine())
    stats = layer_stats(weight)
    return (
        name,
        layer.label,
        shape,
        f"{stats.forward:,}",
        _percent(stats.forward_density),
        f"{stats.backward:,}",
        _percent(stats.backward_density),
        weight.describe_engine(),
    )


def _total_row(weights: Mapping[str, SparseWeight]) -> tuple[str, ...]:
    stats = [layer_stats(weight) for weight in weights.values()]
    a, b, n = (sum(getattr(s, part) for s in stats) for part in ("forward", "backward", "numel"))
    return ("sparse", "", f"{n:,}", f"{a:,}", _percent(a / n), f"{b:,}", _percent(b / n), "")


def _model_line(weights: Mapping[str, SparseWeight], model: nn.Module) -> str:
    p = parameters(model, weights)
    return (
        f"model: {p.used:,} parameters in use of {p.dense:,} ({_percent(p.fraction)}), "
        f"{p.rest:,} of them in dense layers, biases and norms"
    )


def _percent(share: float) -> str:
    return f"{100 * share:.2f} %"
