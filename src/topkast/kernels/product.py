"""What a sparse layer computes: `Linear`, `Conv` or `Lookup`, with its checks, shapes and gradients.

A product is a value: it says what is computed and holds no tensor. `ops.py` brings it to autograd and to
compilers; an engine does the arithmetic.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

import torch
from torch import Tensor

from topkast.kernels.engine import ConvGeometry, Engine, output_space
from topkast.kernels.plan import Plan

Grads = tuple[Tensor | None, Tensor | None, Tensor | None]
Needs = tuple[bool, bool, bool]


class Product(ABC):
    """One kind of layer, with its settings.

    Attributes:
        kind: "linear", "conv" or "embedding".
        casts: Whether autocast casts its operands, as torch does for its own layer of this kind.
        needs_values: Whether its gradients depend on `values`, which are then kept for the backward pass.
    """

    kind: ClassVar[str]
    casts: ClassVar[bool] = True
    needs_values: ClassVar[bool] = True

    @property
    def geometry(self) -> ConvGeometry | None:
        """Of a convolution."""
        return None

    @abstractmethod
    def rules(self) -> list[int]:
        """Its settings as operators take them; `product_of` is the inverse."""

    @abstractmethod
    def flat(self, x: Tensor, shape: tuple[int, ...]) -> Tensor:
        """The input in the form that engines take.

        Raises:
            ValueError: The input does not fit a dense weight of this shape.
        """

    @abstractmethod
    def shaped(self, y: Tensor, x: Tensor) -> Tensor:
        """The output for an input x as it was given."""

    @abstractmethod
    def output_shape(self, x: Tensor, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Of the output for a flat input x."""

    @abstractmethod
    def compute(self, engine: Engine, plan: Plan, values: Tensor, x: Tensor, bias: Tensor | None) -> Tensor:
        """The forward product on A of a flat input."""

    def compute_alone(
        self, engine: Engine, plan: Plan, values: Tensor, x: Tensor, bias: Tensor | None
    ) -> Tensor:
        """The same where no backward pass follows."""
        return self.compute(engine, plan, values, x, bias)

    @abstractmethod
    def grads(
        self, engine: Engine, plan: Plan, values: Tensor, x: Tensor, grad: Tensor, needs: Needs
    ) -> Grads:
        """Gradients of the input (on A), of `values` (on B) and of the bias, each only if it is needed."""


@dataclass(frozen=True)
class Linear(Product):
    """y = x·αᵀ + bias, for x of any rank; with `transpose` y = x·α + bias."""

    kind = "linear"
    transpose: bool = False

    def rules(self) -> list[int]:
        return [int(self.transpose)]

    def flat(self, x: Tensor, shape: tuple[int, ...]) -> Tensor:
        inputs = shape[0] if self.transpose else shape[1]
        if x.ndim == 0 or x.shape[-1] != inputs:
            raise ValueError(
                f"the input's last dimension must be {inputs}, got input of shape {tuple(x.shape)}"
            )
        return x if x.ndim == 2 else x.reshape(-1, inputs)

    def shaped(self, y: Tensor, x: Tensor) -> Tensor:
        return y if x.ndim == 2 else y.view(*x.shape[:-1], y.shape[1])

    def output_shape(self, x: Tensor, shape: tuple[int, ...]) -> tuple[int, ...]:
        return (x.shape[0], shape[1] if self.transpose else shape[0])

    def compute(self, engine: Engine, plan: Plan, values: Tensor, x: Tensor, bias: Tensor | None) -> Tensor:
        return engine.linear(plan, values, x, bias, transpose=self.transpose)

    def compute_alone(
        self, engine: Engine, plan: Plan, values: Tensor, x: Tensor, bias: Tensor | None
    ) -> Tensor:
        return engine.linear_alone(plan, values, x, bias, transpose=self.transpose)

    def grads(
        self, engine: Engine, plan: Plan, values: Tensor, x: Tensor, grad: Tensor, needs: Needs
    ) -> Grads:
        return engine.linear_grads(plan, values, x, grad, needs, transpose=self.transpose)


@dataclass(frozen=True)
class Conv(Product):
    """The convolution of ``(batch, channels, *space)`` or ``(channels, *space)`` with α, plus bias."""

    kind = "conv"
    walk: ConvGeometry

    @property
    def geometry(self) -> ConvGeometry:
        return self.walk

    def rules(self) -> list[int]:
        g = self.walk
        return [*g.stride, *g.padding, *g.dilation, g.groups]

    def flat(self, x: Tensor, shape: tuple[int, ...]) -> Tensor:
        dims, channels = self.walk.num_dims, shape[1] * self.walk.groups
        if x.ndim not in (dims + 1, dims + 2) or x.shape[-dims - 1] != channels:
            raise ValueError(
                f"the input must be ([batch,] {channels} channels, {dims} spatial dimensions), "
                f"got input of shape {tuple(x.shape)}"
            )
        return x if x.ndim == dims + 2 else x.unsqueeze(0)

    def shaped(self, y: Tensor, x: Tensor) -> Tensor:
        return y if x.ndim == y.ndim else y.squeeze(0)

    def output_shape(self, x: Tensor, shape: tuple[int, ...]) -> tuple[int, ...]:
        return (x.shape[0], shape[0], *output_space(tuple(x.shape[2:]), tuple(shape[2:]), self.walk))

    def compute(self, engine: Engine, plan: Plan, values: Tensor, x: Tensor, bias: Tensor | None) -> Tensor:
        return engine.conv(plan, values, x, bias, self.walk)

    def grads(
        self, engine: Engine, plan: Plan, values: Tensor, x: Tensor, grad: Tensor, needs: Needs
    ) -> Grads:
        grads = engine.conv_grads(plan, values, x, grad, self.walk, needs[:2])
        return (*grads, grad.sum((0, *range(2, grad.ndim))) if needs[2] else None)


@dataclass(frozen=True)
class Lookup(Product):
    """Rows of α, for ids of any shape.

    Attributes:
        padding_idx: A row that gets no gradient; -1 for none.
        scale_by_frequency: Whether the gradient of a row is divided by how many tokens have it.
    """

    kind = "embedding"
    casts = False
    needs_values = False
    padding_idx: int = -1
    scale_by_frequency: bool = False

    def rules(self) -> list[int]:
        return [self.padding_idx, int(self.scale_by_frequency)]

    def flat(self, x: Tensor, shape: tuple[int, ...]) -> Tensor:
        if x.dtype not in (torch.int32, torch.int64):
            raise TypeError(f"embedding ids must be int32 or int64, got {x.dtype}")
        return x.reshape(-1).long()

    def shaped(self, y: Tensor, x: Tensor) -> Tensor:
        return y.view(*x.shape, y.shape[1])

    def output_shape(self, x: Tensor, shape: tuple[int, ...]) -> tuple[int, ...]:
        return (x.shape[0], shape[1])

    def compute(self, engine: Engine, plan: Plan, values: Tensor, x: Tensor, bias: Tensor | None) -> Tensor:
        # Whether ids are rows is looked at here: a graph knows it only when it runs, and engines never look.
        if x.numel():
            low, high = (int(bound) for bound in torch.aminmax(x))
            if low < 0 or high >= plan.num_rows:
                raise IndexError(
                    f"embedding ids must lie in [0, {plan.num_rows}), got values from {low} to {high}"
                )
        return engine.lookup(plan, values, x)

    def grads(
        self, engine: Engine, plan: Plan, values: Tensor, x: Tensor, grad: Tensor, needs: Needs
    ) -> Grads:
        return None, engine.lookup_grad(plan, x, self.token_grad(plan.num_rows, x, grad)), None

    def token_grad(self, num_rows: int, ids: Tensor, grad: Tensor) -> Tensor:
        """What each token contributes: its share where rows are scaled by frequency, nothing as padding."""
        if self.scale_by_frequency:
            counts = torch.bincount(ids, minlength=num_rows)
            grad = grad / counts.index_select(0, ids).unsqueeze(1)
        if self.padding_idx >= 0:
            grad = grad.masked_fill((ids == self.padding_idx).unsqueeze(1), 0.0)
        return grad


def product_of(kind: str, rules: list[int]) -> Product:
    """The product with these rules."""
    return _product_of(kind, tuple(rules))


@lru_cache(maxsize=256)
def _product_of(kind: str, rules: tuple[int, ...]) -> Product:
    if kind == "linear":
        return Linear(bool(rules[0]))
    if kind == "embedding":
        return Lookup(rules[0], bool(rules[1]))
    dims = len(rules) // 3
    stride, padding, dilation = (rules[i * dims : (i + 1) * dims] for i in range(3))
    return Conv(ConvGeometry(stride, padding, dilation, rules[-1]))
