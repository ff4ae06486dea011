"""Engine `masked`: scatter to dense, use dense kernels, gather.

Any device, any layer. It saves no time; it is the fallback, the oracle of the tests and the explanation
of what the fast engines do. The dense tensors are scratch: none outlives the call.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from topkast.kernels.engine import ConvGeometry, Engine
from topkast.kernels.plan import Plan

_CONV = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}


def alpha(plan: Plan, values: Tensor) -> Tensor:
    """α as a dense tensor: θ on A, zero elsewhere."""
    dense = values.new_zeros(plan.numel)
    dense.index_copy_(0, plan.positions, torch.where(plan.active, values, 0.0))
    return dense.view(plan.shape)


def _gather(plan: Plan, dense_grad: Tensor) -> Tensor:
    """The dense gradient at the updated positions, zero in the other slots of B."""
    taken = dense_grad.reshape(-1).index_select(0, plan.indices)
    return taken if plan.explores else torch.where(plan.active, taken, 0.0)


class MaskedEngine(Engine):
    name, code, preference = "masked", 1, 2

    def refusal(self, kind: str, geometry: ConvGeometry | None, device_type: str) -> str | None:
        return None

    def linear(
        self, plan: Plan, values: Tensor, x: Tensor, bias: Tensor | None, *, transpose: bool
    ) -> Tensor:
        weight = alpha(plan, values).view(plan.num_rows, plan.num_columns)
        return F.linear(x, weight.t() if transpose else weight, bias)

    def sampled(self, plan: Plan, left: Tensor, right: Tensor) -> Tensor:
        return _gather(plan, left.t() @ right)

    def conv(
        self,
        plan: Plan,
        values: Tensor,
        x: Tensor,
        bias: Tensor | None,
        geometry: ConvGeometry,
    ) -> Tensor:
        g = geometry
        weight = alpha(plan, values)
        return _CONV[g.num_dims](x, weight, bias, g.stride, g.padding, g.dilation, g.groups)

    def conv_grads(
        self,
        plan: Plan,
        values: Tensor,
        x: Tensor,
        grad: Tensor,
        geometry: ConvGeometry,
        needs: tuple[bool, bool],
    ) -> tuple[Tensor | None, Tensor | None]:
        g = geometry
        input_grad, weight_grad, _ = torch.ops.aten.convolution_backward(
            grad,
            x,
            alpha(plan, values),
            None,
            g.stride,
            g.padding,
            g.dilation,
            False,
            [0] * g.num_dims,
            g.groups,
            [*needs, False],
        )
        return input_grad, _gather(plan, weight_grad) if needs[1] else None

    def lookup(self, plan: Plan, values: Tensor, ids: Tensor) -> Tensor:
        return F.embedding(ids, alpha(plan, values).view(plan.num_rows, plan.num_columns))

    def lookup_grad(self, plan: Plan, ids: Tensor, grad: Tensor) -> Tensor:
        dense = grad.new_zeros(plan.num_rows, plan.num_columns)
        return _gather(plan, dense.index_add_(0, ids, grad))
