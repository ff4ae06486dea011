"""Engine `csr`: torch's own sparse products. The portable path that never forms a dense weight.

α is a CSR matrix for the forward product and its transpose a second one for the input gradient; the
weight gradient is `torch.sparse.sampled_addmm` on the pattern of B. Convolutions (1-D and 2-D, one group)
are the same products on unfolded input; an embedding lookup touches only the stored elements of its rows.
"""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from topkast.kernels.engine import ConvGeometry, Engine, output_space
from topkast.kernels.plan import Pattern, Plan

# torch.sparse has float32 and float64 products only; others are computed in float32 and rounded once.
_PRODUCT_DTYPES = (torch.float32, torch.float64)


def _silence_beta_warning() -> None:
    """Torch warns once per process that CSR tensors are in beta: spend that warning here, quietly."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        zero = torch.zeros(1, dtype=torch.int64)
        torch.sparse_csr_tensor(torch.tensor([0, 1]), zero, torch.zeros(1), size=(1, 1))


_silence_beta_warning()


def _matrix(pattern: Pattern, entries: Tensor) -> Tensor:
    # The Plan has checked the indices: torch need not do it again on every call.
    return torch.sparse_csr_tensor(
        pattern.crow, pattern.col, entries, size=pattern.shape, check_invariants=False
    )


def _in_product_dtype(x: Tensor) -> Tensor:
    return x if x.dtype in _PRODUCT_DTYPES else x.float()


def _spmm(pattern: Pattern, values: Tensor, x: Tensor) -> Tensor:
    """(pattern's matrix · xᵀ)ᵀ: ``(tokens, pattern rows)``."""
    entries = _in_product_dtype(pattern.gather(values))
    x = _in_product_dtype(x)
    return (_matrix(pattern, entries) @ x.t()).t()


@dataclass(frozen=True)
class _Patches:
    """A 1-D or 2-D convolution as products on patches; 1-D is 2-D of height 1.

    Patches are rows: ``(batch · positions, channels · kernel)``.
    """

    kernel: tuple[int, ...]
    geometry: ConvGeometry

    @classmethod
    def of(cls, plan: Plan, g: ConvGeometry) -> _Patches:
        if g.num_dims == 2:
            return cls(plan.shape[2:], g)
        flat = ConvGeometry((1, *g.stride), (0, *g.padding), (1, *g.dilation), g.groups)
        return cls((1, *plan.shape[2:]), flat)

    def unfold(self, x: Tensor) -> Tensor:
        g = self.geometry
        x = x.unsqueeze(2) if x.ndim == 3 else x
        patches = F.unfold(x, self.kernel, g.dilation, g.padding, g.stride)
        return patches.transpose(1, 2).reshape(-1, patches.shape[1])

    def fold(self, patches: Tensor, x: Tensor, num_positions: int) -> Tensor:
        """Adds every patch back to where it came from: the transpose of `unfold`, shaped like x."""
        g = self.geometry
        size = (1, x.shape[2]) if x.ndim == 3 else x.shape[2:]
        patches = patches.view(x.shape[0], num_positions, patches.shape[1]).transpose(1, 2)
        folded = F.fold(patches, size, self.kernel, g.dilation, g.padding, g.stride)
        return folded.view(x.shape)


def _row_elements(pattern: Pattern, ids: Tensor) -> tuple[Tensor, Tensor]:
    """For tokens with the given rows: each stored element's token, and its place in the pattern."""
    starts = pattern.crow.index_select(0, ids).long()
    counts = pattern.crow.index_select(0, ids + 1).long() - starts
    tokens = torch.repeat_interleave(counts)
    before = counts.cumsum(0) - counts
    within = torch.arange(tokens.numel(), device=ids.device) - before.index_select(0, tokens)
    return tokens, starts.index_select(0, tokens) + within


class CSREngine(Engine):
    name, code, preference = "csr", 2, 3

    def refusal(self, kind: str, geometry: ConvGeometry | None, device_type: str) -> str | None:
        if kind != "conv" or geometry is None:
            return None
        if geometry.num_dims == 3:
            return "csr has no 3-D convolution"
        if geometry.groups != 1:
            return "csr has no grouped convolution"
        return None

    def linear(
        self, plan: Plan, values: Tensor, x: Tensor, bias: Tensor | None, *, transpose: bool
    ) -> Tensor:
        pattern = plan.forward_columns if transpose else plan.forward_rows
        y = _spmm(pattern, values, x).to(x.dtype).contiguous()
        return y if bias is None else y + bias

    def sampled(self, plan: Plan, left: Tensor, right: Tensor) -> Tensor:
        pattern = plan.backward_rows
        left, wide_right = _in_product_dtype(left), _in_product_dtype(right)
        zeros = left.new_zeros(pattern.col.numel())
        product = torch.sparse.sampled_addmm(
            _matrix(pattern, zeros), left.t().contiguous(), wide_right.contiguous(), beta=0.0
        )
        return pattern.spread(product.values().to(right.dtype), plan.num_slots)

    def conv(
        self,
        plan: Plan,
        values: Tensor,
        x: Tensor,
        bias: Tensor | None,
        geometry: ConvGeometry,
    ) -> Tensor:
        patches = _Patches.of(plan, geometry)
        y = self.linear(plan, values, patches.unfold(x), bias, transpose=False)
        space = output_space(tuple(x.shape[2:]), plan.shape[2:], geometry)
        # Sizes are written out: of an empty batch torch cannot tell what a -1 should be.
        y = y.view(x.shape[0], math.prod(space), plan.num_rows).transpose(1, 2).contiguous()
        return y.view(x.shape[0], plan.num_rows, *space)

    def conv_grads(
        self,
        plan: Plan,
        values: Tensor,
        x: Tensor,
        grad: Tensor,
        geometry: ConvGeometry,
        needs: tuple[bool, bool],
    ) -> tuple[Tensor | None, Tensor | None]:
        patches = _Patches.of(plan, geometry)
        num_positions = math.prod(grad.shape[2:])
        grad = grad.reshape(x.shape[0], plan.num_rows, num_positions).transpose(1, 2)
        grad = grad.reshape(-1, plan.num_rows)
        input_grad = weight_grad = None
        if needs[0]:
            input_grad = patches.fold(self.linear(plan, values, grad, None, transpose=True), x, num_positions)
        if needs[1]:
            weight_grad = self.sampled(plan, grad, patches.unfold(x))
        return input_grad, weight_grad

    def lookup(self, plan: Plan, values: Tensor, ids: Tensor) -> Tensor:
        pattern = plan.forward_rows
        tokens, places = _row_elements(pattern, ids)
        out = values.new_zeros(ids.numel() * plan.num_columns)
        where = tokens * plan.num_columns + pattern.col.index_select(0, places)
        entries = pattern.gather(values).index_select(0, places)
        return out.index_copy_(0, where, entries).view(-1, plan.num_columns)

    def lookup_grad(self, plan: Plan, ids: Tensor, grad: Tensor) -> Tensor:
        pattern = plan.backward_rows
        tokens, places = _row_elements(pattern, ids)
        where = tokens * plan.num_columns + pattern.col.index_select(0, places)
        entries = grad.reshape(-1).index_select(0, where)
        summed = grad.new_zeros(pattern.col.numel()).index_add_(0, places, entries)
        return pattern.spread(summed, plan.num_slots)
