"""Which torch layers have a sparse counterpart, and why others are left dense."""

from __future__ import annotations

from typing import Any

from torch import nn
from torch.nn.parameter import UninitializedParameter
from torch.nn.utils import parametrize

from topkast.nn.attention import MultiheadAttention
from topkast.nn.base import SparseLayer
from topkast.nn.belongings import attributes, constructed, why_dense, why_dense_weight
from topkast.nn.layers import Conv1D, Conv1d, Conv2d, Conv3d, Embedding, Linear

# A new layer is one line here.
_COUNTERPARTS: dict[type[nn.Module], type[SparseLayer]] = {
    nn.Linear: Linear,
    nn.Conv1d: Conv1d,
    nn.Conv2d: Conv2d,
    nn.Conv3d: Conv3d,
    nn.Embedding: Embedding,
}
# By name, so that transformers need not be installed to look.
_HF_CONV1D = ("transformers.pytorch_utils", "Conv1D")


def counterpart(layer: nn.Module) -> type[SparseLayer] | None:
    """The sparse class for this layer, or None. Subclasses count only if they keep torch's forward."""
    cls = type(layer)
    if (cls.__module__, cls.__name__) == _HF_CONV1D:
        return Conv1D
    for dense, sparse in _COUNTERPARTS.items():
        if isinstance(layer, dense) and cls.forward is dense.forward:
            return sparse
    return None


def belongings(layer: nn.Module) -> dict[str, Any]:
    """The attributes that a user or a framework has put on a layer, which its counterpart gets too."""
    cls = next((dense for dense in _COUNTERPARTS if isinstance(layer, dense)), type(layer))
    sizes = (1, 1, 1) if issubclass(cls, nn.modules.conv._ConvNd) else (1, 1)
    return attributes(layer, constructed(cls, *sizes))


def is_known_kind(layer: nn.Module) -> bool:
    """Whether this is a kind of layer that could be sparse, whatever may stand in the way."""
    known = isinstance(layer, tuple(_COUNTERPARTS)) or counterpart(layer) is not None
    return known or parametrize.is_parametrized(layer)


def obstacle(layer: nn.Module) -> str | None:
    """Why this layer stays dense, or None if nothing stands in the way of its counterpart."""
    if parametrize.is_parametrized(layer):
        return "its weight is parametrized"
    sparse_type = counterpart(layer)
    if sparse_type is None:
        for dense in _COUNTERPARTS:
            if isinstance(layer, dense):
                return f"{type(layer).__name__} has a forward of its own"
        return f"{type(layer).__name__} has no sparse counterpart"
    if isinstance(layer.weight, UninitializedParameter):
        return "its weight is not initialised yet (run one batch first)"
    if not isinstance(layer.weight, nn.Parameter):
        return "its weight is not a Parameter"
    if isinstance(layer, nn.Embedding):
        if layer.max_norm is not None:
            return "max_norm rewrites rows during the forward pass"
        if layer.sparse:
            return "sparse=True asks for gradients of sparse layout"
    reason = why_dense(layer, ("weight", "bias"), belongings(layer), sparse_type)
    return reason or why_dense_weight(layer.weight)


_ATTENTION_WEIGHTS = ("in_proj_weight", "q_proj_weight", "k_proj_weight", "v_proj_weight", "in_proj_bias")


def attention_obstacle(attention: nn.MultiheadAttention) -> str | None:
    """The same for attention, whose projections are unpacked into layers of their own."""
    if type(attention) is not nn.MultiheadAttention:
        return f"{type(attention).__name__} has no sparse counterpart"
    parts = (*_ATTENTION_WEIGHTS, "bias_k", "bias_v", "out_proj")
    reason = why_dense(attention, parts, belongings(attention), MultiheadAttention)
    if reason is not None:
        return reason
    for name in _ATTENTION_WEIGHTS:
        weight = getattr(attention, name)
        reason = None if weight is None else why_dense_weight(weight)
        if reason is not None:
            return f"{name}: {reason}"
    reason = obstacle(attention.out_proj)
    return None if reason is None else f"out_proj: {reason}"
