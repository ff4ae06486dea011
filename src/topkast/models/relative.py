"""Attention by content and relative position over a segment and its memory (Dai et al. 2019, section 3.3)."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

# Queries that are attended together. A block sees no key beyond its own last one, so that blocks leave out
# much of what causality forbids, and its scores are nearer in the cache when the next pass comes. That
# was faster, forward and backward, than blocks of 128, than all queries at once, and by far than
# `F.scaled_dot_product_attention` with the position term as its mask, whose gradient has no fused kernel.
_BLOCK = 256


class RelativeAttention(nn.Module):
    """Multi-head attention of a segment to its memory and to itself up to the present, by relative position.

    Queries of the segment are q = W_q·h. Keys and values are k, v = W_kv·[memory; h]. Positions r = W_r·R are
    those of the distance i - j ≥ 0 between a query and a key. The score of a head is

        A(i, j) = ((q_i + u)·k_j + (q_i + v)·r_{i-j}) / √d_head

    with u and v, which the paper calls the global content and position bias, learnt per head.

    Args:
        d_model: Of input and output.
        num_heads: Divides `d_model`.
        dropatt: Share of attention weights that is dropped in training.

    Raises:
        ValueError: `num_heads` does not divide `d_model`.
    """

    def __init__(self, d_model: int, num_heads: int, *, dropatt: float = 0.0) -> None:
        super().__init__()
        if num_heads < 1 or d_model % num_heads:
            raise ValueError(f"`num_heads` must divide `d_model` ({d_model}), got {num_heads}")
        self.num_heads = num_heads
        self.dropatt = dropatt
        # Queries apart from keys and values: memory needs no queries.
        self.query = nn.Linear(d_model, d_model, bias=False)
        self.key_value = nn.Linear(d_model, 2 * d_model, bias=False)
        self.position = nn.Linear(d_model, d_model, bias=False)
        self.out = nn.Linear(d_model, d_model, bias=False)
        self.u = nn.Parameter(torch.empty(num_heads, d_model // num_heads))
        self.v = nn.Parameter(torch.empty(num_heads, d_model // num_heads))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Initialises what is its own, the biases u and v: normal with standard deviation 0.02."""
        nn.init.normal_(self.u, std=0.02)
        nn.init.normal_(self.v, std=0.02)

    def forward(self, h: Tensor, context: Tensor, positions: Tensor) -> Tensor:
        """Attends; the residual connection and the norm are the caller's.

        Args:
            h: (batch, length, d_model), the segment.
            context: (batch, memory + length, d_model), memory and segment.
            positions: (memory + length + 1, d_model), R as `positions_of` gives it.

        Returns:
            (batch, length, d_model).
        """
        q = self._heads(self.query(h))
        k, v = (self._heads(part).contiguous() for part in self.key_value(context).chunk(2, dim=-1))
        r = self._heads(self.position(positions))
        # Scaling q is cheaper than scaling scores.
        scale = 1 / math.sqrt(q.shape[-1])
        qu, qv = ((q + bias[:, None, None]) * scale for bias in (self.u, self.v))
        attended = [self._attend(qu, qv, k, v, r, i) for i in range(0, h.shape[1], _BLOCK)]
        joined = attended[0] if len(attended) == 1 else torch.cat(attended, dim=2)
        return self.out(joined.permute(1, 2, 0, 3).flatten(2))

    def _heads(self, x: Tensor) -> Tensor:
        """([batch,] length, d_model) → (heads, [batch,] length, d_head).

        Heads come first: r is the same for the whole batch, whose queries then go through one product.
        """
        return x.unflatten(-1, (self.num_heads, -1)).movedim(-2, 0)

    def _attend(self, qu: Tensor, qv: Tensor, k: Tensor, v: Tensor, r: Tensor, start: int) -> Tensor:
        """A block of queries, from `start` on: (heads, batch, block, d_head)."""
        heads, batch, length, d_head = qu.shape
        memory, stop = k.shape[2] - length, min(start + _BLOCK, length)
        block, num_keys = stop - start, memory + stop
        qu, qv = (q[:, :, start:stop].reshape(-1, block, d_head) for q in (qu, qv))
        k, v = (x[:, :, :num_keys].reshape(heads * batch, num_keys, d_head) for x in (k, v))
        # The farthest key of this block is nearer than that of the last one.
        r = r[:, -(num_keys + 1) :]
        by_distance = torch.bmm(qv.reshape(heads, batch * block, d_head), r.transpose(1, 2))
        by_distance = by_distance.view(heads * batch, block, num_keys + 1)
        scores = torch.baddbmm(shift(by_distance), qu, k.transpose(1, 2))
        future = torch.ones(block, block, dtype=torch.bool, device=scores.device).triu(1)
        # Behind autograd's back, which would copy all scores' gradient for it: the softmax's is zero there.
        with torch.no_grad():
            scores[:, :, num_keys - block :].masked_fill_(future, -math.inf)
        weights = drop(scores.softmax(-1), self.dropatt, self.training)
        return torch.bmm(weights, v).view(heads, batch, block, d_head)


def shift(by_distance: Tensor) -> Tensor:
    """From scores by distance to scores by key, as a view.

    Of row i of n, column c of `by_distance` belongs to a key at distance columns - 2 - c, and key j is at
    distance keys - n + i - j; hence

        out[i, j] = by_distance[i, n - 1 - i + j]

    which, as a row has one column more than there are keys, is element (n - 1) + i·keys + j of the matrix
    written row after row: the matrix itself, cut and read with rows one shorter. What comes out for keys
    after the query is from another row and means nothing; it is for the caller to mask.

    Args:
        by_distance: (batch, n, keys + 1), contiguous; the last column, of distance -1, is never used.

    Returns:
        (batch, n, keys).
    """
    _, n, columns = by_distance.shape
    keys = columns - 1
    return by_distance.flatten(1)[:, n - 1 : n - 1 + n * keys].unflatten(1, (n, keys))


def positions_of(num_keys: int, width: int, like: Tensor, *, clamp_length: int | None = None) -> Tensor:
    """R: sinusoids of the distances num_keys - 1, …, 1, 0, and one row for `shift` to cut off.

        R_d = [sin(d·ω_0), sin(d·ω_1), …, cos(d·ω_0), cos(d·ω_1), …]   ω_i = 10000^(-2i/width)

    Args:
        num_keys: Memory and segment together.
        width: Of a row, an even number.
        like: A tensor whose dtype and device they are to have.
        clamp_length: The largest distance that is told apart; those beyond count as this one.

    Returns:
        (num_keys + 1, width).
    """
    distances = torch.arange(num_keys - 1, -2, -1, dtype=torch.float32, device=like.device)
    if clamp_length is not None:
        distances = distances.clamp(max=clamp_length)
    exponents = torch.arange(0, width, 2, dtype=torch.float32, device=like.device) / width
    angles = torch.outer(distances, 10000.0**-exponents)
    return torch.cat((angles.sin(), angles.cos()), dim=-1).to(like.dtype)


def drop(x: Tensor, share: float, is_training: bool) -> Tensor:
    """Dropout that costs nothing where there is none."""
    return F.dropout(x, share) if is_training and share else x
