"""`SparseLayer`: what all sparse layers share. Each has one `SparseWeight` and whatever else stays dense."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import torch
from torch import Tensor, nn

from topkast.core.loading import check_states
from topkast.core.weight import SparseWeight
from topkast.kernels.auto import Auto
from topkast.kernels.engine import ConvGeometry, Engine


class SparseLayer(nn.Module):
    """A layer whose weight is sparse.

    Attributes:
        weight: The state: positions and values of B. May be shared with another layer.
        bias: Dense, or None.
        kind: Which products it needs: "linear", "conv" or "embedding".
        label: What it replaces, for tables.
    """

    kind: str
    label: str
    weight: SparseWeight
    bias: nn.Parameter | None

    def __init__(self, weight: SparseWeight, bias: nn.Parameter | None) -> None:
        super().__init__()
        self.weight = weight
        self.register_parameter("bias", bias)
        self.register_load_state_dict_pre_hook(check_states)

    @property
    def geometry(self) -> ConvGeometry | None:
        """How a convolution walks; None for other layers."""
        return None

    @property
    def engine(self) -> Engine | Auto:
        """The engine that computes this layer's products."""
        return self.weight.engine_impl()

    @classmethod
    @abstractmethod
    def from_dense(cls, layer: Any, weight: SparseWeight) -> SparseLayer:
        """The sparse counterpart of `layer`, with the given weight and the layer's own bias."""

    @abstractmethod
    def to_dense(self, weight: nn.Parameter) -> nn.Module:
        """The plain torch layer with the given dense weight and this layer's bias."""

    def theta(self) -> Tensor:
        """θ, dense. For inspection of small layers."""
        return self.weight.theta()

    def alpha(self) -> Tensor:
        """α: θ on A, zero elsewhere; dense. For inspection of small layers."""
        return self.weight.alpha()

    def forward_mask(self) -> Tensor:
        """A as a dense bool tensor."""
        return self.weight.forward_mask()

    def backward_mask(self) -> Tensor:
        """B as a dense bool tensor."""
        return self.weight.backward_mask()

    def _build(
        self, dense_type: type[nn.Module], weight: nn.Parameter, *sizes: Any, **options: Any
    ) -> nn.Module:
        """A torch layer with the given weight and a copy of this layer's bias.

        It is built on the meta device: no memory, and no random numbers, are spent on what is replaced.
        """
        with torch.device("meta"):
            layer = dense_type(*sizes, **options)
        layer.register_parameter("weight", weight)
        if self.bias is not None:
            bias = self.bias
            copy = nn.Parameter(bias.detach().clone(), requires_grad=bias.requires_grad)
            layer.register_parameter("bias", copy)
        return layer
