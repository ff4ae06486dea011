"""Sparse linear layers: torch's Linear, and the transposed one that Hugging Face's GPT-2 is made of."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from topkast.core.weight import SparseWeight
from topkast.kernels import product
from topkast.kernels.ops import multiply
from topkast.nn.base import SparseLayer

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

    def extra_repr(self) -> str:
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

    def to_dense(self, weight: nn.Parameter) -> nn.Module:
        return self._build(self._original, weight, self.nf, self.nx)

    def forward(self, x: Tensor) -> Tensor:
        return multiply(self.weight, _BY_COLUMN, x, self.bias)
