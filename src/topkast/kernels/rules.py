"""What holds for the operations of every engine, called by autograd or by a graph: checks, casts, padding."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor


def is_autocast_on(device_type: str) -> bool:
    """Whether autocast is on; some devices, such as meta, have none and would raise."""
    return torch.amp.is_autocast_available(device_type) and torch.is_autocast_enabled(device_type)


def no_autocast(x: Tensor) -> AbstractContextManager[Any]:
    """Engines get what they are given: casting is done before (`autocast`), not inside their products."""
    device = x.device.type
    if is_autocast_on(device):
        return torch.autocast(device, enabled=False)
    return nullcontext()


def autocast(*tensors: Tensor | None) -> tuple[Tensor | None, ...]:
    """Casts to the autocast dtype where autocast is on, as torch does for its own linear and conv."""
    first = next(t for t in tensors if t is not None)
    if not is_autocast_on(first.device.type):
        return tensors
    dtype = torch.get_autocast_dtype(first.device.type)
    return tuple(
        t if t is None or t.dtype == torch.float64 else t.to(dtype)  # torch leaves float64 alone too
        for t in tensors
    )


def check_operands(x: Tensor, values: Tensor, bias: Tensor | None) -> None:
    """One dtype and one device, as torch demands of its own layers: engines take the input's for all."""
    for name, other in (("weight", values), ("bias", bias)):
        if other is not None and (other.dtype, other.device) != (x.dtype, x.device):
            raise ValueError(
                f"the input ({x.dtype} on {x.device}) and the {name} ({other.dtype} on {other.device}) "
                "must have the same dtype and device; cast one of them, or use torch.autocast"
            )


def check_features(x: Tensor, inputs: int) -> None:
    """The input of a linear layer."""
    if x.ndim == 0 or x.shape[-1] != inputs:
        raise ValueError(f"the input's last dimension must be {inputs}, got input of shape {tuple(x.shape)}")


def check_channels(x: Tensor, channels: int, dims: int) -> None:
    """The input of a convolution."""
    if x.ndim not in (dims + 1, dims + 2) or x.shape[-dims - 1] != channels:
        raise ValueError(
            f"the input must be ([batch,] {channels} channels, {dims} spatial dimensions), "
            f"got input of shape {tuple(x.shape)}"
        )


def flat_ids(ids: Tensor) -> Tensor:
    """The input of an embedding, in one dimension and int64."""
    if ids.dtype not in (torch.int32, torch.int64):
        raise TypeError(f"embedding ids must be int32 or int64, got {ids.dtype}")
    return ids.reshape(-1).long()


def check_ids(flat: Tensor, num_rows: int) -> None:
    """Raises IndexError if an id is not a row. Checked here because engines index without looking."""
    if flat.numel() and (int(flat.min()) < 0 or int(flat.max()) >= num_rows):
        raise IndexError(
            f"embedding ids must lie in [0, {num_rows}), "
            f"got values from {int(flat.min())} to {int(flat.max())}"
        )


def token_grad(num_rows: int, ids: Tensor, grad: Tensor, padding_idx: int, scale: bool) -> Tensor:
    """What each token contributes: its share if rows are scaled by frequency, nothing if it is padding."""
    if scale:
        counts = torch.bincount(ids, minlength=num_rows)
        grad = grad / counts.index_select(0, ids).unsqueeze(1)
    if padding_idx >= 0:
        grad = grad.masked_fill((ids == padding_idx).unsqueeze(1), 0.0)
    return grad
