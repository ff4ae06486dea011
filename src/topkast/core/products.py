"""The products of a sparse weight, as layers use it: engine and Plan of the moment, and the method's tape."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch._C import _functorch  # pyright: ignore[reportAttributeAccessIssue]

from topkast.core.gradient import conv_rows, embedding_rows, linear_rows
from topkast.kernels import ops, traced
from topkast.kernels.engine import ConvGeometry
from topkast.kernels.library import geometry_rules

if TYPE_CHECKING:
    from topkast.core.weight import SparseWeight


def linear(weight: SparseWeight, x: Tensor, bias: Tensor | None, *, transpose: bool = False) -> Tensor:
    """x·αᵀ + bias; with `transpose` x·α + bias."""
    if torch.compiler.is_compiling():
        y = traced.linear(weight.number, weight.shape, weight.used(), x, bias, transpose=transpose)
        return _watched(weight, y, x, "linear", [int(transpose)])
    _check_transforms(weight)
    y = ops.linear(weight.engine_impl(), weight.plan, weight.used(), x, bias, transpose=transpose)
    return weight.watch(y, lambda grad: linear_rows(x, grad, transpose=transpose))


def conv(weight: SparseWeight, x: Tensor, bias: Tensor | None, geometry: ConvGeometry) -> Tensor:
    """The convolution of x with α, plus bias."""
    if torch.compiler.is_compiling():
        y = traced.conv(weight.number, weight.shape, weight.used(), x, bias, geometry)
        return _watched(weight, y, x, "conv", geometry_rules(geometry))
    _check_transforms(weight)
    y = ops.conv(weight.engine_impl(), weight.plan, weight.used(), x, bias, geometry)
    return weight.watch(y, lambda grad: conv_rows(x, grad, tuple(weight.shape), geometry))


def embedding(
    weight: SparseWeight, ids: Tensor, *, padding_idx: int | None, scale_by_frequency: bool
) -> Tensor:
    """Rows `ids` of α."""
    rules = {"padding_idx": padding_idx, "scale_by_frequency": scale_by_frequency}
    if torch.compiler.is_compiling():
        y = traced.embedding(weight.number, weight.shape, weight.used(), ids, **rules)
        padding = -1 if padding_idx is None else padding_idx
        return _watched(weight, y, ids, "embedding", [padding, int(scale_by_frequency)])
    _check_transforms(weight)
    y = ops.embedding(weight.engine_impl(), weight.plan, weight.used(), ids, **rules)
    num_rows = weight.shape[0]
    return weight.watch(y, lambda grad: embedding_rows(ids, grad, num_rows, padding_idx, scale_by_frequency))


def _check_transforms(weight: SparseWeight) -> None:
    """Raises where kernels do not see through the tensors: torch.func's transforms, and recorders."""
    if torch._C._get_tracing_state() is not None or torch._C._len_torch_dispatch_stack():
        _check_recorders(weight)
    if _functorch.maybe_current_level() is not None:
        raise RuntimeError(
            f"the sparse layer {weight.name!r} cannot take part in torch.func's transforms (grad, vmap, "
            "jacrev, …); torch.func.functional_call alone works, together with torch.autograd.grad"
        )


def _check_recorders(weight: SparseWeight) -> None:
    """Raises within what records tensor operations and would miss ours: the record would be wrong."""
    from torch.fx.experimental.proxy_tensor import get_proxy_mode

    if torch._C._get_tracing_state() is not None or get_proxy_mode() is not None:
        raise RuntimeError(
            f"the sparse layer {weight.name!r} cannot be recorded by torch.jit.trace, make_fx or the "
            "TorchScript ONNX exporter, which do not see its kernels. Record `topkast.densify(model)`, a "
            "plain torch copy; or use torch.export or torch.compile, which know sparse layers"
        )


def _watched(weight: SparseWeight, y: Tensor, x: Tensor, kind: str, rules: list[int]) -> Tensor:
    if weight.wants_gradient is None or not y.requires_grad:
        return y
    return traced.watch(weight.number, y, x, kind, rules)


# ---- as torch's functions take a weight -------------------------------------------------------------------


def functional_linear(input: Tensor, weight: SparseWeight, bias: Tensor | None = None) -> Tensor:
    """`F.linear` with a sparse weight."""
    return linear(weight, input, bias)


def functional_embedding(
    input: Tensor,
    weight: SparseWeight,
    padding_idx: int | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Tensor:
    """`F.embedding` with a sparse weight."""
    if padding_idx is not None and padding_idx < 0:
        padding_idx += weight.shape[0]
    if max_norm is not None or sparse:
        raise TypeError(f"the sparse embedding {weight.name!r} has neither max_norm nor sparse gradients")
    return embedding(weight, input, padding_idx=padding_idx, scale_by_frequency=scale_grad_by_freq)
