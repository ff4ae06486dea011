"""`Handle.memory()`: the bytes of a model in training, by part, beside those of the same model dense."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import nn

from topkast.core.bytes import dense_bytes, dense_equivalent, sparse_bytes
from topkast.core.weight import SparseWeight

_PARTS = ("weight", "gradient", "optimizer", "sets", "plan", "reservoir", "companion")


@dataclass(frozen=True)
class Memory:
    """Bytes that are held at this moment, counted on the tensors and Plans that hold them.

    Activations, and what a product needs while it runs, are not in it.

    Attributes:
        layers: Sparse weight → part → bytes. Parts are "weight" (values of B), "gradient", "optimizer",
            "sets" (which elements B and A are), "plan" (what the products derive from that), "reservoir"
            (what is known of C), "companion" (what the method keeps beside it), their sum "total", and
            "dense": the dense weight's with the same optimizer.
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
        header = ("layer", *_PARTS, "total", "dense", "share")
        rows = [_row(name, parts) for name, parts in self.layers.items()]
        rest = {**dict.fromkeys(_PARTS, 0), **self.rest, "dense": self.rest["total"]}
        rows.append(_row("dense rest", rest))
        rows.append(_row("all", self._sums(rest)))
        widths = [max(len(row[i]) for row in (header, *rows)) for i in range(len(header))]
        lines = [
            "  ".join(
                [row[0].ljust(widths[0]), *(c.rjust(w) for c, w in zip(row[1:], widths[1:], strict=True))]
            )
            for row in (header, *rows)
        ]
        rule = "─" * len(lines[0])
        return "\n".join([lines[0], rule, *lines[1:-1], rule, lines[-1]])

    def _sums(self, rest: Mapping[str, int]) -> dict[str, int]:
        parts = [*self.layers.values(), rest]
        return {key: sum(part[key] for part in parts) for key in (*_PARTS, "total", "dense")}


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
        layers[name] = {**sparse_bytes(weight, optimizer), "dense": dense_equivalent(weight, optimizer)}
    ours = {id(weight.values) for weight in weights.values()}
    rest: dict[str, int] = dict.fromkeys(("weight", "gradient", "optimizer", "total"), 0)
    for parameter in model.parameters():
        if id(parameter) not in ours:
            holder = next((o for o in every_optimizer if parameter in o.state), None)
            for key, size in dense_bytes(parameter, holder).items():
                rest[key] += size
    return Memory(layers, rest)


def _row(name: str, parts: Mapping[str, int]) -> tuple[str, ...]:
    share = f"{parts['total'] / parts['dense']:.1%}" if parts["dense"] else ""
    return (name, *(_size(parts[key]) for key in (*_PARTS, "total", "dense")), share)


def _size(count: float) -> str:
    for unit in ("B", "kB", "MB"):
        if count < 1000:
            return f"{count:.4g} {unit}"
        count /= 1000
    return f"{count:.4g} GB"
