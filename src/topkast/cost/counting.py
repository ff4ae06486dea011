"""Products that are counted in place of being computed: zeros of the right shapes, and a tally of FLOPs.

The counts are those of the dense products; what a density makes of them is for others to say.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from topkast.kernels.engine import ConvGeometry, Engine, output_space
from topkast.kernels.plan import Plan
from topkast.nn.base import SparseLayer
from topkast.nn.layers import Conv1D
from topkast.nn.registry import counterpart


@dataclass
class Tally:
    """FLOPs so far of the three dense products of a weight."""

    forward: int = 0
    input_grad: int = 0
    weight_grad: int = 0

    def add_grads(self, flops: int, needs_input: bool, needs_weight: bool) -> None:
        """Each of the two gradients takes as many multiply-adds as the forward product."""
        self.input_grad += flops * needs_input
        self.weight_grad += flops * needs_weight


def linear_flops(num_tokens: int, numel: int) -> int:
    """2 · tokens · rows · columns."""
    return 2 * num_tokens * numel


def conv_flops(output_shape: tuple[int, ...], numel: int) -> int:
    """2 · batch · output pixels · n, for an output ``(batch, channels, *space)``, whatever the groups."""
    return 2 * output_shape[0] * math.prod(output_shape[2:]) * numel


class CountingEngine(Engine):
    """Computes nothing: it counts into `tally`. A lookup in an embedding is no product and costs nothing."""

    name = "counting"

    def __init__(self) -> None:
        self.tally = Tally()

    def refusal(self, kind: str, geometry: ConvGeometry | None, device_type: str) -> str | None:
        return None

    def linear(
        self, plan: Plan, values: Tensor, x: Tensor, bias: Tensor | None, *, transpose: bool
    ) -> Tensor:
        self.tally.forward += linear_flops(x.shape[0], plan.numel)
        return x.new_zeros(x.shape[0], plan.num_outputs(transpose=transpose))

    def sampled(self, plan: Plan, left: Tensor, right: Tensor) -> Tensor:
        self.tally.weight_grad += linear_flops(left.shape[0], plan.numel)
        return left.new_zeros(plan.num_slots)

    def linear_grads(
        self,
        plan: Plan,
        values: Tensor,
        x: Tensor,
        grad: Tensor,
        needs: tuple[bool, bool, bool],
        *,
        transpose: bool,
    ) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        self.tally.add_grads(linear_flops(x.shape[0], plan.numel), needs[0], needs[1])
        input_grad, weight_grad = _zeros_if(x, needs[0]), _zeros_if(values, needs[1])
        return input_grad, weight_grad, grad.sum(0) if needs[2] else None

    def conv(
        self,
        plan: Plan,
        values: Tensor,
        x: Tensor,
        bias: Tensor | None,
        geometry: ConvGeometry,
    ) -> Tensor:
        shape = (x.shape[0], plan.shape[0], *output_space(tuple(x.shape[2:]), plan.shape[2:], geometry))
        self.tally.forward += conv_flops(shape, plan.numel)
        return x.new_zeros(shape)

    def conv_grads(
        self,
        plan: Plan,
        values: Tensor,
        x: Tensor,
        grad: Tensor,
        geometry: ConvGeometry,
        needs: tuple[bool, bool],
    ) -> tuple[Tensor | None, Tensor | None]:
        self.tally.add_grads(conv_flops(tuple(grad.shape), plan.numel), *needs)
        return _zeros_if(x, needs[0]), _zeros_if(values, needs[1])

    def lookup(self, plan: Plan, values: Tensor, ids: Tensor) -> Tensor:
        return values.new_zeros(ids.numel(), plan.num_columns)

    def lookup_grad(self, plan: Plan, ids: Tensor, grad: Tensor) -> Tensor:
        return grad.new_zeros(plan.num_slots)


class _Product(torch.autograd.Function):
    @staticmethod
    def forward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, x: Tensor, weight: Tensor, shape: tuple[int, ...], flops: int, tally: Tally
    ) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.flops, ctx.tally = flops, tally
        tally.forward += flops
        return weight.new_zeros(shape)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        x, weight = ctx.saved_tensors
        needs_x, needs_weight = ctx.needs_input_grad[:2]
        ctx.tally.add_grads(ctx.flops, needs_x, needs_weight)
        return _zeros_if(x, needs_x), _zeros_if(weight, needs_weight), None, None, None


def product(
    tally: Tally, x: Tensor, weight: Tensor, bias: Tensor | None, shape: tuple[int, ...], flops: int
) -> Tensor:
    """The counted stand-in for a product of a dense weight: zeros of `shape`, differentiable in all operands.

    Args:
        tally: What is counted into.
        x: The input, or the ids of a lookup.
        bias: Takes part so that its gradient is asked for, as it would be.
        shape: Of the output.
        flops: Of each of the three products.
    """
    y = _Product.apply(x, weight, shape, flops, tally)
    return y if bias is None else y + bias.sum()


def _zeros_if(like: Tensor, needed: bool) -> Tensor | None:
    return torch.zeros_like(like) if needed else None


# ---- dense layers -------------------------------------------------------------------------------------


def is_countable(layer: nn.Module) -> bool:
    """Whether this is a dense layer whose product is known: one with a sparse counterpart, not wrapped."""
    if isinstance(layer, SparseLayer) or "forward" in layer.__dict__:
        return False
    return counterpart(layer) is not None


def counting_forward(layer: nn.Module, tally: Tally) -> Callable[[Tensor], Tensor]:
    """What to call in place of a dense layer's forward pass, to count its product; see `is_countable`."""
    sparse_type = counterpart(layer)
    assert sparse_type is not None
    forward = _FORWARD[sparse_type.kind]
    is_transposed = issubclass(sparse_type, Conv1D)  # Hugging Face's has its weight the other way round
    return lambda input: forward(layer, tally, input, is_transposed)


def _linear(layer: Any, tally: Tally, x: Tensor, is_transposed: bool) -> Tensor:
    rows, columns = layer.weight.shape
    outputs, inputs = (columns, rows) if is_transposed else (rows, columns)
    if x.ndim == 0 or x.shape[-1] != inputs:
        raise ValueError(f"the input's last dimension must be {inputs}, got input of shape {tuple(x.shape)}")
    flops = linear_flops(x[..., 0].numel(), layer.weight.numel())
    return product(tally, x, layer.weight, layer.bias, (*x.shape[:-1], outputs), flops)


def _conv(layer: Any, tally: Tally, x: Tensor, is_transposed: bool) -> Tensor:
    dims = len(layer.stride)
    if x.ndim not in (dims + 1, dims + 2) or x.shape[-dims - 1] != layer.in_channels:
        raise ValueError(
            f"the input must be ([batch,] {layer.in_channels} channels, {dims} spatial dimensions), "
            f"got input of shape {tuple(x.shape)}"
        )
    space = tuple(x.shape[-dims:])
    if layer.padding != "same":
        padding = (0,) * dims if layer.padding == "valid" else layer.padding
        geometry = ConvGeometry(layer.stride, padding, layer.dilation, layer.groups)
        space = output_space(space, layer.kernel_size, geometry)
    batch = x.shape[0] if x.ndim == dims + 2 else 1
    shape = (batch, layer.out_channels, *space)
    flops = conv_flops(shape, layer.weight.numel())
    return product(tally, x, layer.weight, layer.bias, shape if x.ndim == dims + 2 else shape[1:], flops)


def _lookup(layer: Any, tally: Tally, ids: Tensor, is_transposed: bool) -> Tensor:
    return product(tally, ids, layer.weight, None, (*ids.shape, layer.weight.shape[1]), 0)


_FORWARD: Mapping[str, Callable[[Any, Tally, Tensor, bool], Tensor]] = {
    "linear": _linear,
    "conv": _conv,
    "embedding": _lookup,
}
