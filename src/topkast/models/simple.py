"""The two simplest networks: a multi-layer perceptron, and a small GPT-style decoder."""

from __future__ import annotations

from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class MLP(nn.Sequential):
    """Linear layers of the given sizes with ReLU between them; the input is flattened.

    Args:
        sizes: Inputs, hidden sizes, outputs: ``MLP([784, 512, 256, 10])``.
    """

    def __init__(self, sizes: list[int]) -> None:
        layers: list[nn.Module] = []
        for inputs, outputs in pairwise(sizes):
            layers += [nn.Linear(inputs, outputs), nn.ReLU()]
        super().__init__(*layers[:-1])

    def forward(self, input: Tensor) -> Tensor:
        return super().forward(input.flatten(1))


class AbsTopK(nn.Module):
    """Keeps the largest magnitudes of each vector, and zero for the rest.

    y = x on TopK(|x|, share·n), 0 elsewhere; the gradient goes to what was kept.

    Args:
        share: Of the n entries of the last dimension; at least one is kept.
    """

    def __init__(self, share: float) -> None:
        super().__init__()
        if not 0 < share <= 1:
            raise ValueError(f"`share` must be above 0 and at most 1, got {share!r}")
        self.share = share

    def forward(self, input: Tensor) -> Tensor:
        kept = max(1, round(self.share * input.shape[-1]))
        places = input.abs().topk(kept, dim=-1, sorted=False).indices
        return torch.zeros_like(input).scatter(-1, places, input.gather(-1, places))

    def extra_repr(self) -> str:
        return f"share={self.share}"


# Standard deviations at the start: of a decoder's positions, and of its embedding unless one is given. An
# embedding beside positions as large as itself is learned late, by dense networks too (docs/method.md).
POSITION_STD = 0.02
EMBEDDING_STD = 0.1


class Decoder(nn.Module):
    """Predicts the next symbol at every position, by pre-norm blocks of causal attention and feed-forward.

    Args:
        num_symbols: Size of the alphabet, 256 for bytes.
        width: Of the residual stream.
        depth: Number of blocks.
        num_heads: Attention heads; divides `width`.
        window: The longest sequence.
        active_share: Share of the entries that `AbsTopK` leaves, of what each part reads from the residual
            stream and of the neurons of feed-forward parts. 1 leaves all: there is no `AbsTopK`.
        embedding_std: Standard deviation of the embedding at the start.
    """

    def __init__(
        self,
        num_symbols: int,
        width: int,
        depth: int,
        num_heads: int,
        window: int,
        active_share: float = 1.0,
        embedding_std: float = EMBEDDING_STD,
    ) -> None:
        super().__init__()
        if not embedding_std > 0:
            raise ValueError(f"`embedding_std` must be above 0, got {embedding_std!r}")
        self.window = window
        self.embedding_std = embedding_std
        self.embedding = nn.Embedding(num_symbols, width)
        self.position = nn.Parameter(torch.zeros(window, width))
        self.blocks = nn.ModuleList(Block(width, num_heads, active_share) for _ in range(depth))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, num_symbols)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Initialises what is its own: positions, and the embedding if it is dense."""
        nn.init.normal_(self.position, std=POSITION_STD)
        if isinstance(self.embedding, nn.Embedding):
            nn.init.normal_(self.embedding.weight, std=self.embedding_std)

    def forward(self, symbols: Tensor) -> Tensor:
        """(batch, length) symbols → (batch, length, num_symbols) logits."""
        h = self.embedding(symbols) + self.position[: symbols.shape[1]]
        for block in self.blocks:
            h = block(h)
        return self.head(self.norm(h))


class Block(nn.Module):
    def __init__(self, width: int, num_heads: int, active_share: float = 1.0) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.keep = nn.Identity() if active_share == 1 else AbsTopK(active_share)
        self.norm1 = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.norm2 = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, h: Tensor) -> Tensor:
        h = h + self.out(self._attend(self.qkv(self.keep(self.norm1(h)))))
        return h + self.down(self.keep(F.gelu(self.up(self.keep(self.norm2(h))))))

    def _attend(self, qkv: Tensor) -> Tensor:
        batch, length, _ = qkv.shape
        q, k, v = qkv.view(batch, length, 3, self.num_heads, -1).permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return attended.transpose(1, 2).reshape(batch, length, -1)
