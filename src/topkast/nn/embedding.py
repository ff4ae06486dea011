"""A sparse embedding: rows of α are looked up from the stored elements."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from topkast.core.weight import SparseWeight
from topkast.kernels.ops import multiply
from topkast.kernels.product import Lookup
from topkast.nn.base import SparseLayer


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
        return multiply(self.weight, Lookup(padding_idx, self.scale_grad_by_freq), input)

    def extra_repr(self) -> str:
        pad = "" if self.padding_idx is None else f", padding_idx={self.padding_idx}"
        return f"{self.num_embeddings}, {self.embedding_dim}{pad}"
