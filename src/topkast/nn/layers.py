"""The sparse layers: Linear and Hugging Face's transposed one, convolutions, and an embedding."""

from __future__ import annotations

from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from topkast.core.floor import Grid
from topkast.core.weight import SparseWeight
from topkast.kernels import product
from topkast.kernels.engine import ConvGeometry
from topkast.kernels.ops import multiply
from topkast.nn.base import SparseLayer

# ---- linear layers -------------------------------------------------------------------------------------

_BY_ROW, _BY_COLUMN = product.Linear(), product.Linear(transpose=True)


class Linear(SparseLayer):
    """y = x·αᵀ + bias, with α of shape ``(out_features, in_features)``."""

    kind = "linear"
    label = "Linear"
    dense_type = nn.Linear

    def _take(self, layer: Any, weight: SparseWeight) -> None:
        super()._take(layer, weight)
        self.out_features, self.in_features = weight.shape

    def to_dense(self, weight: nn.Parameter) -> nn.Module:
        sizes = (self.in_features, self.out_features)
        return self._build(nn.Linear, weight, *sizes, bias=self.bias is not None)

    def forward(self, input: Tensor) -> Tensor:
        return multiply(self.weight, _BY_ROW, input, self.bias)

    def shown_sizes(self) -> str:
        return f"in_features={self.in_features}, out_features={self.out_features}"


class Conv1D(SparseLayer):
    """Hugging Face's `Conv1D`: y = x·α + bias, with α of shape ``(inputs, outputs)``."""

    kind = "linear"
    label = "Conv1D (HF)"
    private = ("_original",)

    def _take(self, layer: Any, weight: SparseWeight) -> None:
        super()._take(layer, weight)
        self.nx, self.nf = weight.shape
        # Kept so that densify can give the very class back without importing transformers here.
        self._original = type(layer)

    def shown_sizes(self) -> str:
        return f"nx={self.nx}, nf={self.nf}"

    @classmethod
    def grid_of(cls, layer: Any) -> Grid:
        return Grid.of(tuple(layer.weight.shape), is_transposed=True)

    def to_dense(self, weight: nn.Parameter) -> nn.Module:
        return self._build(self._original, weight, self.nf, self.nx)

    def forward(self, x: Tensor) -> Tensor:
        return multiply(self.weight, _BY_COLUMN, x, self.bias)


# ---- an embedding --------------------------------------------------------------------------------------


class Embedding(SparseLayer):
    """Rows of α, with α of shape ``(num_embeddings, embedding_dim)``. May share α with an output Linear."""

    kind = "embedding"
    label = "Embedding"
    dense_type = nn.Embedding

    def _take(self, layer: Any, weight: SparseWeight) -> None:
        super()._take(layer, weight)
        self.num_embeddings, self.embedding_dim = weight.shape
        self.padding_idx = layer.padding_idx
        self.scale_grad_by_freq = layer.scale_grad_by_freq

    def to_dense(self, weight: nn.Parameter) -> nn.Module:
        return self._build(
            nn.Embedding,
            weight,
            self.num_embeddings,
            self.embedding_dim,
            padding_idx=self.padding_idx,
            scale_grad_by_freq=self.scale_grad_by_freq,
        )

    def forward(self, input: Tensor) -> Tensor:
        padding_idx = -1 if self.padding_idx is None else self.padding_idx
        return multiply(self.weight, product.Lookup(padding_idx, self.scale_grad_by_freq), input)

    def shown_sizes(self) -> str:
        pad = "" if self.padding_idx is None else f", padding_idx={self.padding_idx}"
        return f"{self.num_embeddings}, {self.embedding_dim}{pad}"


# ---- convolutions in one, two and three dimensions -----------------------------------------------------


class _Conv(SparseLayer):
    """A convolution with every stride, padding, padding mode, dilation and number of groups of torch's."""

    kind = "conv"
    private = ("_pads", "_pads_first", "_geometry")

    def _take(self, layer: Any, weight: SparseWeight) -> None:
        super()._take(layer, weight)
        self.in_channels = layer.in_channels
        self.out_channels = layer.out_channels
        self.kernel_size = layer.kernel_size
        self.stride = layer.stride
        self.padding = layer.padding
        self.dilation = layer.dilation
        self.groups = layer.groups
        self.padding_mode = layer.padding_mode
        self._pads = _pads(layer)
        self._pads_first = _pads_first(layer)
        self._geometry = geometry_of(layer)

    @property
    def geometry(self) -> ConvGeometry:
        return self._geometry

    def to_dense(self, weight: nn.Parameter) -> nn.Module:
        assert self.dense_type is not None
        return self._build(
            self.dense_type,
            weight,
            self.in_channels,
            self.out_channels,
            self.kernel_size,
            stride=self.stride,
            padding=self.padding,
            dilation=self.dilation,
            groups=self.groups,
            bias=self.bias is not None,
            padding_mode=self.padding_mode,
        )

    def forward(self, input: Tensor) -> Tensor:
        if self._pads_first:
            mode = "constant" if self.padding_mode == "zeros" else self.padding_mode
            input = F.pad(input, self._pads, mode=mode)
        return multiply(self.weight, product.Conv(self._geometry), input, self.bias)

    def shown_sizes(self) -> str:
        return (
            f"{self.in_channels}, {self.out_channels}, kernel_size={self.kernel_size}, "
            f"stride={self.stride}, padding={self.padding}, dilation={self.dilation}, "
            f"groups={self.groups}, padding_mode={self.padding_mode!r}"
        )


def geometry_of(layer: Any) -> ConvGeometry:
    """How torch's convolution walks, as its sparse counterpart does."""
    half = _pads(layer)[::-1][::2]
    padding = (0,) * len(layer.stride) if _pads_first(layer) else half
    return ConvGeometry(tuple(layer.stride), padding, tuple(layer.dilation), layer.groups)


def _pads_first(layer: Any) -> bool:
    """Uneven or non-zero padding is applied to the input first, the convolution then needs none."""
    pads = _pads(layer)[::-1]
    return layer.padding_mode != "zeros" or pads[::2] != pads[1::2]


def _pads(layer: Any) -> tuple[int, ...]:
    """Padding before and after each dimension, last dimension first, as F.pad wants it.

    "same" puts the odd one after, as torch does.
    """
    pads: list[int] = []
    for k, d, i in zip(layer.kernel_size, layer.dilation, range(len(layer.stride)), strict=True):
        if layer.padding == "same":
            total = d * (k - 1)
            before, after = total // 2, total - total // 2
        elif layer.padding == "valid":
            before = after = 0
        else:
            before = after = int(layer.padding[i])
        pads = [before, after, *pads]
    return tuple(pads)


class Conv1d(_Conv):
    """A convolution in one dimension, with α of shape ``(out, in / groups, k)``."""

    label = "Conv1d"
    dense_type = nn.Conv1d


class Conv2d(_Conv):
    """A convolution in two dimensions, with α of shape ``(out, in / groups, k, k)``."""

    label = "Conv2d"
    dense_type = nn.Conv2d


class Conv3d(_Conv):
    """A convolution in three dimensions, with α of shape ``(out, in / groups, k, k, k)``.

    Engine `masked` alone: exact, but no faster than dense.
    """

    label = "Conv3d"
    dense_type = nn.Conv3d
