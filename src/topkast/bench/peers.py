"""Other libraries with sparse linear layers for the CPU: one adapter each.

A peer knows one set of positions, so it is compared at equal forward and backward sparsity. It is given the
weight α with its zeros and must return output and gradients as a dense layer would;
`contenders.measure` checks that before it takes any time.
"""

from __future__ import annotations

import importlib
import importlib.util
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from topkast.bench import contenders
from topkast.bench.contenders import Contender, Peer
from topkast.bench.ratios import Pair
from topkast.kernels.plan import Pattern, Plan


class TorchCSR(Peer):
    """torch's own products, `mm` of a CSR matrix and `sampled_addmm`, as our engine `csr` calls them."""

    name = "torch_csr"

    def missing(self) -> str | None:
        return None

    def version(self) -> str:
        return torch.__version__

    def build(self, alpha: nn.Module, pair: Pair) -> Contender:
        return replace(contenders.ours(alpha, pair, "csr"), name=self.name, engine=None)


class SparseLab(Peer):
    """sparselab: padded CSR, the transpose cached for the input gradient."""

    name = "sparselab"
    needs = ("SparseLinear",)

    def build(self, alpha: nn.Module, pair: Pair) -> Contender:
        lab = importlib.import_module("sparselab")
        layout = importlib.import_module("sparselab.layout")
        # Its cache of transposes goes by id(), which a later matrix may have again.
        importlib.import_module("sparselab.ops")._clear_transpose_cache()
        weight = alpha.get_parameter("weight").detach()
        module = lab.SparseLinear(weight.shape[1], weight.shape[0], sparsity=0.99)
        # It has no constructor from a given weight: put the matrix where its own constructor puts one.
        matrix = module._csr = layout.from_dense(weight)
        module._values = nn.Parameter(torch.as_tensor(matrix.values))
        module.bias = nn.Parameter(alpha.get_parameter("bias").detach().clone())
        slots, positions = _padded_slots(matrix)

        def spread(grad: Tensor) -> Tensor:
            flat = grad.new_zeros(weight.numel())
            return flat.index_copy_(0, positions, grad[slots]).view(weight.shape)

        return Contender(self.name, module, module._values, spread)


def _padded_slots(matrix: Any) -> tuple[Tensor, Tensor]:
    """Of a padded CSR matrix: the slots in use, and the position of each in the dense matrix."""
    starts, counts = (torch.tensor(part).long() for part in (matrix.row_start, matrix.row_nnz))
    rows = torch.repeat_interleave(counts)
    before = (counts.cumsum(0) - counts)[rows]
    slots = starts[rows] + torch.arange(rows.numel()) - before
    columns = torch.tensor(matrix.col_indices).long()[slots]
    return slots, rows * int(matrix.ncols) + columns


class SparseProp(Peer):
    """sparseprop (ICML 2023): CSR, input and output transposed at every call."""

    name = "sparseprop"

    def build(self, alpha: nn.Module, pair: Pair) -> Contender:
        linear = importlib.import_module("sparseprop.modules.linear")
        module = linear.SparseLinear.from_dense(alpha)
        starts, columns = (part.long() for part in module.W_idx)
        shape = alpha.get_parameter("weight").shape
        positions = torch.repeat_interleave(starts.diff()) * shape[1] + columns

        def spread(grad: Tensor) -> Tensor:
            return grad.new_zeros(shape.numel()).index_copy_(0, positions, grad).view(shape)

        return Contender(self.name, module, module.W_val, spread)


class Spops(Peer):
    """spops of IST-DASLab: products without a layer or autograd; both are added here, as a user would."""

    name = "spops"
    needs = ("spmm", "sddmm")

    def build(self, alpha: nn.Module, pair: Pair) -> Contender:
        weight = alpha.get_parameter("weight").detach()
        flat = weight.reshape(-1)
        positions = torch.nonzero(flat).flatten()
        plan = Plan(tuple(weight.shape), positions, torch.ones_like(positions, dtype=torch.bool))
        module = _SpopsLinear(plan, flat[positions], alpha.get_parameter("bias").detach().clone())

        def spread(grad: Tensor) -> Tensor:
            return grad.new_zeros(flat.numel()).index_copy_(0, positions, grad).view(weight.shape)

        return Contender(self.name, module, module.values, spread)


class _SpopsLinear(nn.Module):
    def __init__(self, plan: Plan, values: Tensor, bias: Tensor) -> None:
        super().__init__()
        self.values, self.bias = nn.Parameter(values), nn.Parameter(bias)
        self.spops = importlib.import_module("spops")
        self.by_row, self.by_column = plan.forward_rows, plan.forward_columns
        self.row_order, self.column_order = _by_count(self.by_row), _by_count(self.by_column)

    def forward(self, x: Tensor) -> Tensor:
        return _SpopsProduct.apply(x, self.values, self) + self.bias


def _by_count(pattern: Pattern) -> Tensor:
    """Rows, those with most elements first: what spops calls row indices."""
    return torch.argsort(pattern.crow.diff(), descending=True, stable=True).to(torch.int32)


class _SpopsProduct(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, values: Tensor, layer: _SpopsLinear) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        turned = x.t().contiguous()
        ctx.save_for_backward(turned, values)
        ctx.layer = layer
        rows = layer.by_row
        y = layer.spops.spmm(values, rows.crow, layer.row_order, rows.col, turned, rows.shape[0])
        return y.t()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None]:  # pyright: ignore[reportIncompatibleMethodOverride]
        turned, values = ctx.saved_tensors
        layer: _SpopsLinear = ctx.layer
        rows, columns = layer.by_row, layer.by_column
        turned_grad = grad.t().contiguous()
        entries = columns.gather(values)
        grad_x = layer.spops.spmm(
            entries, columns.crow, layer.column_order, columns.col, turned_grad, columns.shape[0]
        )
        grad_values = layer.spops.sddmm(rows.crow, layer.row_order, rows.col, turned_grad, turned)
        return grad_x.t(), grad_values, None


PEERS: tuple[Peer, ...] = (TorchCSR(), SparseLab(), SparseProp(), Spops())


def find_peers() -> tuple[list[Peer], dict[str, str]]:
    """The peers that can be used here, and why the others cannot."""
    reasons = {peer.name: peer.missing() for peer in PEERS}
    usable = [peer for peer in PEERS if reasons[peer.name] is None]
    return usable, {name: reason for name, reason in reasons.items() if reason is not None}
