"""What an engine is: the three products of a sparse layer, given a `Plan`.

For y = x·αᵀ: the forward product on A, the input gradient on A, and the weight gradient sampled on B.
Autograd lives one level up (`ops.py`), so an engine is plain arithmetic and can be tested as such.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

from torch import Tensor

from topkast.kernels.plan import Plan


@dataclass(frozen=True)
class ConvGeometry:
    """How a convolution walks: everything but its weight. Tuples have one entry per spatial dimension."""

    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int

    @property
    def num_dims(self) -> int:
        return len(self.stride)


def output_space(space: tuple[int, ...], kernel: tuple[int, ...], geometry: ConvGeometry) -> tuple[int, ...]:
    """Spatial size of a convolution's output: ⌊(n + 2p - d(k-1) - 1)/s⌋ + 1 in each dimension."""
    return tuple(
        (n + 2 * p - d * (k - 1) - 1) // s + 1
        for n, k, s, p, d in zip(
            space, kernel, geometry.stride, geometry.padding, geometry.dilation, strict=True
        )
    )


class Engine(ABC):
    """One way to compute the products.

    Shapes: `x` is ``(tokens, inputs)``, `grad` is ``(tokens, outputs)``, `values` has |B| entries. The
    weight is the matrix ``(num_rows, num_columns)`` of the Plan.

    Attributes:
        name: What users call it.
        code: What stands for it in checkpoints. A number is never given twice; 0 is for "undecided".
        preference: Engine "auto" takes the smaller of two that are equally fast.
        is_for_cpu: Whether it runs on the CPU alone; elsewhere `masked` takes its place.
    """

    name: str
    code: int
    preference: int
    is_for_cpu: bool = False

    def about(self) -> str:
        """What it computes with, for people."""
        return "torch's own kernels"

    def unavailable(self) -> str | None:
        """Why this engine cannot be used at all on this machine, or None."""
        return None

    @abstractmethod
    def refusal(self, kind: str, geometry: ConvGeometry | None, device_type: str) -> str | None:
        """Why this engine cannot do a layer of this kind ("linear", "conv", "embedding"), or None."""

    @abstractmethod
    def linear(
        self, plan: Plan, values: Tensor, x: Tensor, bias: Tensor | None, *, transpose: bool
    ) -> Tensor:
        """x·αᵀ + bias, or x·α + bias with `transpose`."""

    def linear_alone(
        self, plan: Plan, values: Tensor, x: Tensor, bias: Tensor | None, *, transpose: bool
    ) -> Tensor:
        """`linear` where no backward pass follows; an engine may have something better for few tokens."""
        return self.linear(plan, values, x, bias, transpose=transpose)

    @abstractmethod
    def sampled(self, plan: Plan, left: Tensor, right: Tensor) -> Tensor:
        """(leftᵀ·right) at the updated positions, zero in the other slots: |B| numbers.

        `left` is ``(tokens, num_rows)``, `right` is ``(tokens, num_columns)``.
        """

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
        """Gradients of input (on A), values (|B| numbers) and bias, each only if `needs` asks for it.

        An engine that shares work between them, as `native` does, has a version of its own.
        """
        input_grad = weight_grad = None
        if needs[0]:
            input_grad = self.linear(plan, values, grad, None, transpose=not transpose)
        if needs[1]:
            left, right = (x, grad) if transpose else (grad, x)
            weight_grad = self.sampled(plan, left, right)
        return input_grad, weight_grad, grad.sum(0) if needs[2] else None

    @abstractmethod
    def conv(
        self,
        plan: Plan,
        values: Tensor,
        x: Tensor,
        bias: Tensor | None,
        geometry: ConvGeometry,
    ) -> Tensor:
        """The convolution of x, ``(batch, channels, *space)``, with α."""

    @abstractmethod
    def conv_grads(
        self,
        plan: Plan,
        values: Tensor,
        x: Tensor,
        grad: Tensor,
        geometry: ConvGeometry,
        needs: tuple[bool, bool],
    ) -> tuple[Tensor | None, Tensor | None]:
        """Input gradient on A and weight gradient (|B| numbers), each only if `needs` asks for it."""

    @abstractmethod
    def lookup(self, plan: Plan, values: Tensor, ids: Tensor) -> Tensor:
        """Rows `ids` (1-D, checked by the caller) of α: ``(tokens, num_columns)``."""

    @abstractmethod
    def lookup_grad(self, plan: Plan, ids: Tensor, grad: Tensor) -> Tensor:
        """Σ over tokens t of grad[t, column] where ids[t] = row, per updated element: |B| numbers."""
