"""Bytes of a model in training, counted on the objects that hold them, beside the dense model's."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from topkast.core.weight import SparseWeight
from topkast.kernels.plan import Pattern, Plan
from topkast.text import BYTES, aligned, ruled, scaled

_UNITS = BYTES[:4]  # tables go up to GB
PARTS = ("weight", "gradient", "optimizer", "sets", "plan", "reservoir", "companion")


@dataclass(frozen=True)
class Memory:
    """Bytes that are held at this moment, counted on the tensors and Plans that hold them.

    Activations, and what a product needs while it runs, are not in it.

    Attributes:
        layers: Sparse weight → part → bytes. Parts are "weight" (values of B), "gradient" and "optimizer".
            "sets" says which elements B and A are, "plan" is what the products derive from that.
            "reservoir" is what is known of C, "companion" what the method keeps beside it. "total" is
            their sum, "dense" that of the dense weight with the same optimizer.
        rest: The same for biases, norms and dense layers: "weight", "gradient", "optimizer", "total".
    """

    layers: dict[str, dict[str, int]]
    rest: dict[str, int]

    @property
    def sparse(self) -> int:
        """All of it."""
        return self.rest["total"] + sum(parts["total"] for parts in self.layers.values())

    @property
    def dense(self) -> int:
        """What the same model would take if it were dense."""
        return self.rest["total"] + sum(parts["dense"] for parts in self.layers.values())

    @property
    def share(self) -> float:
        """Of the dense model's bytes."""
        return self.sparse / self.dense

    def __str__(self) -> str:
        header = ("layer", *PARTS, "total", "dense", "share")
        rows = [_row(name, parts) for name, parts in self.layers.items()]
        rest = {**dict.fromkeys(PARTS, 0), **self.rest, "dense": self.rest["total"]}
        rows.append(_row("dense rest", rest))
        rows.append(_row("all", self._sums(rest)))
        return "\n".join(ruled(aligned((header, *rows))))

    def _sums(self, rest: Mapping[str, int]) -> dict[str, int]:
        parts = [*self.layers.values(), rest]
        return {key: sum(part[key] for part in parts) for key in (*PARTS, "total", "dense")}


def memory(
    model: nn.Module,
    weights: Mapping[str, SparseWeight],
    optimizers: Mapping[str, torch.optim.Optimizer | None],
    every_optimizer: list[torch.optim.Optimizer],
) -> Memory:
    """Counts.

    Args:
        optimizers: By sparse weight, the one that trains it.
        every_optimizer: Those that may hold the dense rest.
    """
    layers = {}
    for name, weight in weights.items():
        optimizer = optimizers[name]
        parts = sparse_bytes(weight, optimizer, every_optimizer)
        layers[name] = {**parts, "dense": dense_equivalent(weight, optimizer)}
    ours = {id(parameter) for weight in weights.values() for parameter in weight.parameters()}
    rest: dict[str, int] = dict.fromkeys(("weight", "gradient", "optimizer", "total"), 0)
    for parameter in model.parameters():
        if id(parameter) not in ours:
            for key, size in dense_bytes(parameter, _holder(parameter, every_optimizer)).items():
                rest[key] += size
    return Memory(layers, rest)


def _holder(parameter: Tensor, optimizers: Iterable[torch.optim.Optimizer]) -> torch.optim.Optimizer | None:
    return next((o for o in optimizers if parameter in o.state), None)


def dense_bytes(weight: Tensor, optimizer: torch.optim.Optimizer | None) -> dict[str, int]:
    """Of a dense weight: by part, and their sum as "total"."""
    return _with_total(
        {
            "weight": weight.nbytes,
            "gradient": _nbytes([weight.grad]),
            "optimizer": _state_bytes(weight, optimizer),
        }
    )


def sparse_bytes(
    weight: SparseWeight,
    optimizer: torch.optim.Optimizer | None,
    every_optimizer: Iterable[torch.optim.Optimizer] = (),
) -> dict[str, int]:
    """Of a sparse weight: by part, and their sum as "total".

    "sets" are the buffers that say what A and B are. "plan" is what was derived from them for the products.
    "reservoir" is what is known of C. "companion" is what the method keeps beside the weight, and of what it
    learns there, such as a threshold, gradient and optimizer state too. One of `every_optimizer` trains that.
    """
    companion, learned = (), 0
    if weight.companion is not None:
        companion = weight.companion.buffers()
        for p in weight.companion.parameters():
            learned += dense_bytes(p, _holder(p, every_optimizer))["total"]
    return _with_total(
        {
            "weight": weight.values.nbytes,
            "gradient": _nbytes([weight.values.grad]),
            "optimizer": _state_bytes(weight.values, optimizer),
            "sets": _nbytes(weight.buffers(recurse=False)),
            "plan": plan_bytes(weight.plan),
            "reservoir": _nbytes(weight.reservoir.buffers()),
            "companion": _nbytes(companion) + learned,
        }
    )


def dense_equivalent(weight: SparseWeight, optimizer: torch.optim.Optimizer | None) -> int:
    """What the same weight would take if it were dense, trained by the same optimizer.

    Whatever is kept per element of B (value, gradient if there is one, moments) is kept per element then.
    """
    state = [] if optimizer is None else list(_tensors_in(optimizer.state.get(weight.values, {}).values()))
    kept = [weight.values, weight.values.grad, *state]
    per_element = [t for t in kept if t is not None and t.numel() == weight.values.numel()]
    return sum(t.element_size() for t in per_element) * weight.numel()


def plan_bytes(plan: Plan) -> int:
    """Of the tensors a Plan holds, each counted once, and of the compiled Plans made from it.

    Not of the sets it looks at: they are the weight's.
    """
    compiled = sum(int(getattr(derived, "num_bytes", 0)) for derived in plan.derived.values())
    sets = {plan.indices.data_ptr(), plan.active.data_ptr()}
    own = [t for t in _tensors_in(vars(plan).values()) if t.untyped_storage().data_ptr() not in sets]
    return compiled + _nbytes(own)


def _tensors_in(values: Iterable[Any]) -> Iterator[Tensor]:
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, Pattern):
            yield from _tensors_in(vars(value).values())


def _state_bytes(parameter: Tensor, optimizer: torch.optim.Optimizer | None) -> int:
    return 0 if optimizer is None else _nbytes(_tensors_in(optimizer.state.get(parameter, {}).values()))


def _nbytes(tensors: Iterable[Tensor | None]) -> int:
    """Bytes of the storages: two tensors that share one count once."""
    storages = {t.untyped_storage().data_ptr(): t.untyped_storage() for t in tensors if t is not None}
    return sum(storage.nbytes() for storage in storages.values())


def _with_total(parts: dict[str, int]) -> dict[str, int]:
    return {**parts, "total": sum(parts.values())}


def _row(name: str, parts: Mapping[str, int]) -> tuple[str, ...]:
    share = f"{parts['total'] / parts['dense']:.1%}" if parts["dense"] else ""
    return (name, *(scaled(parts[key], _UNITS) for key in (*PARTS, "total", "dense")), share)
