"""Sparse layers. Each is a torch layer whose weight is a `SparseWeight`."""

from topkast.nn.attention import MultiheadAttention
from topkast.nn.base import SparseLayer
from topkast.nn.layers import Conv1D, Conv1d, Conv2d, Conv3d, Embedding, Linear

__all__ = [
    "Conv1D",
    "Conv1d",
    "Conv2d",
    "Conv3d",
    "Embedding",
    "Linear",
    "MultiheadAttention",
    "SparseLayer",
]
