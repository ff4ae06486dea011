"""A trained network as few numbers: of sparse weights only the elements of A, row by row.

For a weight named ``N`` of shape ``(r, …)``, seen as a matrix of r rows and c = numel/r columns, there are

    N.values    its elements on A, by row and column
    N.columns   the column of each, ascending within a row; uint16 where c ≤ 65536, else int32 or int64
    N.offsets   r + 1 numbers: row i is elements offsets[i] to offsets[i + 1]

and everything else is there by its own name. The metadata (strings, as safetensors wants it) say
``format = "topkast-compressed"``, ``version``, ``shapes`` (JSON: N → shape) and ``tied`` (JSON: N → the name
that has the tensor). Names are those of the dense network's state_dict.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from topkast.convert.densify import densify
from topkast.core.weight import SparseWeight
from topkast.nn.attention import MultiheadAttention
from topkast.nn.base import SparseLayer

FORMAT, VERSION = "topkast-compressed", "1"


@dataclass(frozen=True)
class Compressed:
    """A network in this form.

    Attributes:
        tensors: By name.
        metadata: What says how to read them.
    """

    tensors: dict[str, Tensor]
    metadata: dict[str, str]


@torch.no_grad()
def compress(model: nn.Module) -> Compressed:
    """The network without its zeros. Nothing of dense size is made, attention's packed projections apart.

    Raises:
        ValueError: There is no sparse layer in the model.
    """
    if not any(isinstance(module, SparseLayer) for module in model.modules()):
        raise ValueError("the model has no sparse layer: there are no zeros to leave out")
    tensors: dict[str, Tensor] = {}
    shapes: dict[str, list[int]] = {}
    tied: dict[str, str] = {}
    entries = list(_entries(model))  # keeps them alive, so that no two have the same identity
    first: dict[int, str] = {}
    for name, tensor in entries:
        if (owner := first.setdefault(id(tensor), name)) != name:
            tied[name] = owner
        elif isinstance(tensor, SparseWeight):
            shapes[name] = list(tensor.shape)
            _put(tensors, name, *_elements(tensor), tuple(tensor.shape))
        else:
            tensors[name] = tensor.detach()
    metadata = {"format": FORMAT, "version": VERSION}
    return Compressed(tensors, {**metadata, "shapes": json.dumps(shapes), "tied": json.dumps(tied)})


def _entries(model: nn.Module, prefix: str = "") -> Iterator[tuple[str, Tensor | SparseWeight]]:
    """What the dense network's state_dict would have, in its order; sparse weights as they are."""
    if isinstance(model, MultiheadAttention):
        sparse = any(isinstance(module, SparseLayer) for module in model.modules())
        packed = densify(model) if sparse else model.to_packed()
        yield from ((prefix + name, tensor) for name, tensor in packed.state_dict(keep_vars=True).items())
        return
    own: dict[str, Tensor] = {}
    model._save_to_state_dict(own, prefix, keep_vars=True)
    if isinstance(model, SparseLayer):
        yield prefix + "weight", model.weight
    yield from ((name, tensor) for name, tensor in own.items() if isinstance(tensor, Tensor))
    for name, child in model.named_children():
        if not isinstance(child, SparseWeight):
            yield from _entries(child, f"{prefix}{name}.")


def _elements(weight: SparseWeight) -> tuple[Tensor, Tensor]:
    """Positions of A and what the products use there, without what the method makes zero."""
    positions, values = weight.indices[weight.active].long(), weight.evaluated()[weight.active]
    if weight.companion is None or not weight.companion.cuts:
        return positions, values
    stays = values != 0
    stays[0] |= ~stays.any()  # a sparse weight has one element at least
    return positions[stays], values[stays]


def _put(
    tensors: dict[str, Tensor], name: str, positions: Tensor, values: Tensor, shape: tuple[int, ...]
) -> None:
    """Adds the three tensors of a sparse weight; positions ascend."""
    rows = shape[0]
    columns = torch.Size(shape).numel() // rows if rows else 0
    row = positions // max(1, columns)
    offsets = torch.zeros(rows + 1, dtype=torch.int64)
    offsets[1:] = torch.bincount(row, minlength=rows).cumsum(0)
    tensors[f"{name}.values"] = values.detach().contiguous()
    tensors[f"{name}.columns"] = (positions - row * columns).to(_index_type(columns))
    tensors[f"{name}.offsets"] = offsets.to(torch.int32) if len(positions) < 2**31 else offsets


def _index_type(columns: int) -> torch.dtype:
    if columns <= 2**16:
        return torch.uint16
    return torch.int32 if columns <= 2**31 else torch.int64
