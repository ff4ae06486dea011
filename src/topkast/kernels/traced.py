"""The operations of a sparse layer while a compiler is tracing it: the same as those of `ops.py`.

Nothing that a refresh changes may be looked at here, or the graph would be wrong, or be made anew, after each
of them: sets, Plans and the choice of an engine are looked up by the operators when the graph runs.
"""

from __future__ import annotations

import torch
from torch import Tensor

from topkast.kernels import library
from topkast.kernels.engine import ConvGeometry
from topkast.kernels.rules import autocast, check_channels, check_features, check_operands, flat_ids

_OPS = torch.ops.topkast


def linear(
    source: Tensor, shape: torch.Size, values: Tensor, x: Tensor, bias: Tensor | None, *, transpose: bool
) -> Tensor:
    """See `ops.linear`; `source` is the number of the weight and `shape` that of the dense weight."""
    inputs, outputs = shape if transpose else (shape[1], shape[0])
    check_features(x, inputs)
    x, values, bias = autocast(x, values, bias)  # pyright: ignore[reportAssignmentType]
    check_operands(x, values, bias)
    rows = x.reshape(-1, inputs)
    ticket = _pick(source, "linear", [int(transpose)], values, rows)
    y = _OPS.linear(rows, values, bias, ticket, outputs, transpose)
    return y.view(*x.shape[:-1], outputs)


def conv(
    source: Tensor,
    shape: torch.Size,
    values: Tensor,
    x: Tensor,
    bias: Tensor | None,
    geometry: ConvGeometry,
) -> Tensor:
    """See `ops.conv`."""
    dims = geometry.num_dims
    check_channels(x, shape[1] * geometry.groups, dims)
    x, values, bias = autocast(x, values, bias)  # pyright: ignore[reportAssignmentType]
    check_operands(x, values, bias)
    batched = x if x.ndim == dims + 2 else x.unsqueeze(0)
    rules = library.geometry_rules(geometry)
    ticket = _pick(source, "conv", rules, values, batched)
    y = _OPS.conv(batched, values, bias, ticket, list(shape), rules)
    return y if x.ndim == dims + 2 else y.squeeze(0)


def embedding(
    source: Tensor,
    shape: torch.Size,
    values: Tensor,
    ids: Tensor,
    *,
    padding_idx: int | None,
    scale_by_frequency: bool,
) -> Tensor:
    """See `ops.embedding`; whether ids are rows is looked at when the graph runs."""
    flat = flat_ids(ids)
    padding = -1 if padding_idx is None else padding_idx
    ticket = _pick(source, "embedding", [], values, flat)
    y = _OPS.lookup(values, flat, ticket, shape[1], padding, scale_by_frequency)
    return y.view(*ids.shape, shape[1])


def watch(source: Tensor, y: Tensor, x: Tensor, kind: str, rules: list[int]) -> Tensor:
    """`y`, as a copy whose backward pass tells the weight of the gradient it gets."""
    return _OPS.watch(y, x.detach(), source, kind, rules)


def _pick(source: Tensor, kind: str, rules: list[int], values: Tensor, x: Tensor) -> Tensor:
    is_training = torch.is_grad_enabled() and values.requires_grad
    return _OPS.pick(x.detach(), values.detach(), source, kind, rules, is_training)
