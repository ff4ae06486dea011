"""Which torch layers have a sparse counterpart, and why others are left dense."""

from __future__ import annotations

from torch import nn
from torch.nn.parameter import UninitializedParameter
from torch.nn.utils import parametrize

from topkast.nn.base import SparseLayer
from topkast.nn.conv import Conv1d, Conv2d, Conv3d
from topkast.nn.embedding import Embedding
from topkast.nn.linear import Conv1D, Linear

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


def is_known_kind(layer: nn.Module) -> bool:
    """Whether this is a kind of layer that could be sparse, whatever may stand in the way."""
    return parametrize.is_parametrized(layer) or isinstance(layer, tuple(_COUNTERPARTS))


def obstacle(layer: nn.Module) -> str | None:
    """Why this layer stays dense, or None if nothing stands in the way of its counterpart."""
    if parametrize.is_parametrized(layer):
        return "its weight is parametrized"
    if counterpart(layer) is None:
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
    return None
