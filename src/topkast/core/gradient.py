"""The dense weight gradient, in pieces: for methods that grow by it, without ever holding all of it.

A layer that is asked to keeps its input and the gradient of its output until the optimizer's step (`Tape`).
From these any rows of the dense gradient can be computed. So its largest elements are found chunk by chunk of
rows, as the paper's appendix on RigL describes. Memory is one chunk and the k best so far, whatever the dense
size is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise

import torch
from torch import Tensor

from topkast.core.ranks import Ranks
from topkast.core.select import top_k
from topkast.kernels.engine import ConvGeometry
from topkast.kernels.product import Conv, Linear, Lookup, Product

# Gives rows [first, last) of the dense gradient, as a matrix.
Rows = Callable[[int, int], Tensor]

# Elements of the dense gradient that are there at a time: 16 MB in float32.
CHUNK = 2**22


def linear_rows(x: Tensor, grad: Tensor, *, transpose: bool) -> Rows:
    """∂L/∂α = gradᵀ·x, for y = x·αᵀ; with `transpose` xᵀ·grad, for y = x·α."""
    left, right = (x, grad) if transpose else (grad, x)
    return lambda first, last: _wide(left[:, first:last]).t() @ _wide(right)


def conv_rows(x: Tensor, grad: Tensor, shape: tuple[int, ...], geometry: ConvGeometry) -> Rows:
    """Of a convolution's weight; a row is an output channel."""
    dims = geometry.num_dims
    per_group = shape[0] // geometry.groups

    def within_group(first: int, last: int) -> Tensor:
        group = first // per_group
        inputs = _wide(x[:, group * shape[1] : (group + 1) * shape[1]])
        outputs = _wide(grad[:, first:last])
        weight = inputs.new_empty(last - first, *shape[1:])
        nothing = [0] * dims
        gradient = torch.ops.aten.convolution_backward(
            outputs,
            inputs,
            weight,
            None,
            list(geometry.stride),
            list(geometry.padding),
            list(geometry.dilation),
            False,
            nothing,
            1,
            [False, True, False],
        )[1]
        return gradient.reshape(last - first, -1)

    def rows(first: int, last: int) -> Tensor:
        cuts = [first, *range((first // per_group + 1) * per_group, last, per_group), last]
        return torch.cat([within_group(a, b) for a, b in pairwise(cuts)])

    return rows


def lookup_rows(ids: Tensor, grad: Tensor, num_rows: int, product: Lookup) -> Rows:
    """Of an embedding: a row is the sum over its tokens."""
    grad = product.token_grad(num_rows, ids, grad)

    def rows(first: int, last: int) -> Tensor:
        here = (ids >= first) & (ids < last)
        chunk = _wide(grad).new_zeros(last - first, grad.shape[-1])
        return chunk.index_add_(0, ids[here] - first, _wide(grad[here]))

    return rows


def rows_of(product: Product, x: Tensor, grad: Tensor, shape: tuple[int, ...]) -> Rows:
    """From a product's flat input and the gradient of its output."""
    if isinstance(product, Linear):
        return linear_rows(x, grad, transpose=product.transpose)
    if isinstance(product, Conv):
        return conv_rows(x, grad, shape, product.walk)
    assert isinstance(product, Lookup)
    return lookup_rows(x, grad, shape[0], product)


def _wide(t: Tensor) -> Tensor:
    """Half precision is summed in float32."""
    return t.float() if t.dtype in (torch.float16, torch.bfloat16) else t


class Tape:
    """The dense gradient of one weight over one optimizer step: the sum over micro-batches and tied layers.

    Where several ranks train the weight it is the mean over ranks, once they are joined: of one chunk at a
    time, so that memory stays that of a chunk.

    Args:
        shape: Of the dense weight.
        chunk: Elements that are computed at a time, at least one row.
    """

    def __init__(self, shape: tuple[int, ...], chunk: int = CHUNK) -> None:
        self.num_rows = shape[0]
        self.num_columns = int(torch.Size(shape).numel()) // shape[0]
        self._rows_at_once = max(1, chunk // self.num_columns)
        self._parts: list[Rows] = []
        self._joined: tuple[Ranks, Tensor] | None = None

    def __bool__(self) -> bool:
        """Whether there is anything on it: a layer may not have been used in this step."""
        return bool(self._parts) or self._joined is not None

    def join(self, ranks: Ranks, like: Tensor) -> None:
        """From now on every rank asks for the same chunks, and gets their mean.

        Args:
            ranks: At least one of them has something on its tape.
            like: Of the type and on the device that gradients are added up in; half precision is widened.
        """
        self._joined = (ranks, _wide(like.detach()[:0]))

    def add(self, rows: Rows) -> None:
        self._parts.append(rows)

    def clear(self) -> None:
        self._parts.clear()

    def chunks(self) -> Iterator[tuple[int, Tensor]]:
        """The first position of each chunk of rows, and its gradient, flat."""
        for first in range(0, self.num_rows, self._rows_at_once):
            last = min(self.num_rows, first + self._rows_at_once)
            yield first * self.num_columns, self._sum(first, last)

    def _sum(self, first: int, last: int) -> Tensor:
        if self._joined is None:
            return self._own(first, last)
        ranks, like = self._joined
        if not self._parts:
            return ranks.mean_(like.new_zeros((last - first) * self.num_columns))
        return ranks.mean_(self._own(first, last).to(like.dtype).contiguous())

    def _own(self, first: int, last: int) -> Tensor:
        chunk = self._parts[0](first, last)
        for rows in self._parts[1:]:
            chunk += rows(first, last)
        return chunk.flatten()

    def top(self, k: int, excluded: Tensor) -> Tensor:
        """Positions of the k largest magnitudes outside `excluded`, which is increasing; increasing.

        Raises:
            FloatingPointError: The gradient is not finite.
        """
        best = (torch.empty(0, dtype=torch.int64), torch.empty(0))
        for first, chunk in self.chunks():
            if not torch.isfinite(torch.linalg.vector_norm(chunk, float("inf"))):
                raise FloatingPointError("the dense gradient is not finite")
            ends = torch.tensor([first, first + chunk.numel()]).to(excluded)
            low, high = torch.searchsorted(excluded, ends).tolist()
            chosen = _largest_outside(chunk, k, excluded[low:high].to(chunk.device) - first)
            positions = torch.cat([best[0].to(chosen), chosen + first])
            numbers = torch.cat([best[1].to(chunk), chunk[chosen]])
            kept = top_k(numbers, k)
            best = (positions[kept], numbers[kept])
            del chunk  # before the next one is made
        return best[0]


def _largest_outside(chunk: Tensor, k: int, excluded: Tensor) -> Tensor:
    """Places of the k largest magnitudes of a chunk outside `excluded`, whose numbers are set to zero."""
    chunk.index_fill_(0, excluded, 0.0)
    chosen = top_k(chunk, k)
    if excluded.numel() == 0 or (chosen.numel() and bool(chunk[chosen].all())):
        return chosen
    # So few gradients are not zero that excluded places came in: look at the others alone.
    free = torch.ones(chunk.numel(), dtype=torch.bool, device=chunk.device).index_fill_(0, excluded, False)
    places = torch.nonzero(free).flatten()
    return places[top_k(chunk[places], k)]
