"""Giving `values` another length while everybody holds on to the same Parameter."""

from __future__ import annotations

import torch
from torch import Tensor, nn


@torch.no_grad()
def resize_(parameter: nn.Parameter, data: Tensor) -> None:
    """Makes `data`, of another length, the content of `parameter`. Its gradient is dropped.

    The object stays the same, so that optimizers and lists of parameters stay right. What must go is the node
    that collects its gradient in autograd: it remembers the old length, and lives as long as any graph it is
    part of (a loss that is still in a variable). torch forgets it when the dtype changes, hence the detour.
    """
    other = torch.float32 if data.dtype == torch.float64 else torch.float64
    parameter.grad = None
    parameter.data = torch.empty(0, dtype=other, device=data.device)
    parameter.data = data
