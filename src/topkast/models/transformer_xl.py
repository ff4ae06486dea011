"""Transformer-XL: a language model that remembers the segments before (Dai et al. 2019)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from topkast.models.adaptive import IGNORED, AdaptiveEmbedding, AdaptiveSoftmax, Clusters
from topkast.models.relative import RelativeAttention, drop, positions_of

INITIAL_STD = 0.02


class TransformerXL(nn.Module):
    """Predicts the next symbol at every position, from its segment and a memory of earlier ones.

    The memory is what each layer was given for the last `memory_length` symbols. Attention reads it as if it
    were part of the segment, but no gradient goes into it:

        logits, memory = model(first)
        logits, memory = model(second, memory)

    While the memory holds all of the past, that is the same as one pass over everything. Later a layer sees
    `memory_length` symbols back, and the n-th layer above the symbols n times as far.

    Args:
        num_symbols: Size of the vocabulary, ordered by frequency if there are `cutoffs`.
        depth: Number of layers.
        d_model: Width of the network, an even number.
        num_heads: Attention heads; divides `d_model`.
        d_ff: Inner width of the feed-forward parts.
        d_embed: Width of the embedding, by default `d_model`. If it is another there is a projection.
        memory_length: Symbols to remember. An attribute that may be changed at any time: evaluation usually
            has a longer memory than training.
        dropout: Share dropped of embeddings, positions, the output of each part of a layer, the inside of
            feed-forward parts, and of the last layer's output.
        dropatt: Share dropped of attention weights.
        cutoffs: Where the vocabulary is cut into clusters; see `topkast.models.adaptive`.
        div_val: How much narrower the embedding of each cluster is than that of the one before.
        tie_embeddings: Whether output and input have the same embeddings.
        tie_projections: Whether they have the same projections: for all clusters, or for each.
        tie_biases: Whether all layers share one pair of biases u and v.
        pre_norm: Whether norms stand before each part of a layer, with one more at the end, instead of after
            adding its output to its input.
        clamp_length: The largest distance that positions tell apart.
        initial_std: Standard deviation of all weights at the start. That of the published networks is far
            below 1/√width in a narrow one, which then hardly learns.

    Raises:
        ValueError: A size that cannot be, or sizes that do not fit each other.
    """

    def __init__(
        self,
        num_symbols: int,
        *,
        depth: int,
        d_model: int,
        num_heads: int,
        d_ff: int,
        d_embed: int | None = None,
        memory_length: int = 0,
        dropout: float = 0.0,
        dropatt: float = 0.0,
        cutoffs: Sequence[int] = (),
        div_val: int = 1,
        tie_embeddings: bool = True,
        tie_projections: bool | Sequence[bool] = False,
        tie_biases: bool = False,
        pre_norm: bool = False,
        clamp_length: int | None = None,
        initial_std: float = INITIAL_STD,
    ) -> None:
        super().__init__()
        _check_sizes(d_model, depth=depth, d_ff=d_ff, clamp_length=clamp_length)
        _check_shares(dropout=dropout, dropatt=dropatt)
        self.d_model = d_model
        self.dropout = dropout
        self.clamp_length = clamp_length
        self.memory_length = memory_length
        clusters = Clusters(
            num_symbols, d_model if d_embed is None else d_embed, d_model, tuple(cutoffs), div_val
        )
        self.embedding = AdaptiveEmbedding(clusters)
        layers = [
            Layer(d_model, num_heads, d_ff, dropout=dropout, dropatt=dropatt, pre_norm=pre_norm)
            for _ in range(depth)
        ]
        if tie_biases:
            first = layers[0].attention
            for layer in layers[1:]:
                layer.attention.u, layer.attention.v = first.u, first.v
        self.layers = nn.ModuleList(layers)
        self.norm = nn.LayerNorm(d_model) if pre_norm else nn.Identity()
        self.softmax = AdaptiveSoftmax(
            clusters, tied=self.embedding if tie_embeddings else None, tie_projections=tie_projections
        )
        self.apply(partial(initialise, std=initial_std))

    @property
    def memory_length(self) -> int:
        """Symbols to remember."""
        return self._memory_length

    @memory_length.setter
    def memory_length(self, length: int) -> None:
        if length < 0:
            raise ValueError(f"`memory_length` must be at least 0, got {length}")
        self._memory_length = length

    def forward(self, symbols: Tensor, memory: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Logits of what comes next, and the memory for the next segment.

        Args:
            symbols: (batch, length).
            memory: What the call for the segment before returned; None at the start of a text.

        Returns:
            Logits (batch, length, num_symbols), which with `cutoffs` are log-probabilities, and the memory
            (depth, batch, up to memory_length, d_model).
        """
        hidden, remembered = self.hidden(symbols, memory)
        return self.softmax(hidden), remembered

    def loss(self, symbols: Tensor, targets: Tensor, memory: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """The mean of -log p(target) in nats, and the memory for the next segment.

        With `cutoffs` this is far cheaper than `forward`, which has the probability of every symbol.

        Args:
            symbols: (batch, length).
            targets: (batch, length), what came next; -100 where it does not count.
            memory: See `forward`.
        """
        if targets.shape != symbols.shape:
            shape, wanted = tuple(targets.shape), tuple(symbols.shape)
            raise ValueError(f"`targets` must have the shape of `symbols` {wanted}, got {shape}")
        self._check_symbols("targets", targets.masked_fill(targets == IGNORED, 0))
        hidden, remembered = self.hidden(symbols, memory)
        nll, num_counted = self.softmax.nll(hidden, targets), (targets != IGNORED).sum()
        return nll.sum() / num_counted.clamp(min=1), remembered

    def log_prob(self, symbols: Tensor, memory: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Log-probabilities (batch, length, num_symbols) of what comes next, and the memory."""
        logits, remembered = self(symbols, memory)
        return F.log_softmax(logits, dim=-1), remembered

    def hidden(self, symbols: Tensor, memory: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """The last layer's output (batch, length, d_model), and the memory for the next segment."""
        self._check_symbols("symbols", symbols)
        h = drop(self.embedding(symbols), self.dropout, self.training)
        memory = h.new_empty(len(self.layers), len(h), 0, self.d_model) if memory is None else memory.detach()
        self._check_memory(memory, len(h))
        num_keys = memory.shape[2] + h.shape[1]
        positions = positions_of(num_keys, self.d_model, h, clamp_length=self.clamp_length)
        positions = drop(positions, self.dropout, self.training)
        num_forgotten = max(0, num_keys - self.memory_length)
        remembered = []
        for layer, past in zip(self.layers, memory, strict=True):
            context = torch.cat((past, h), dim=1)
            remembered.append(context[:, num_forgotten:].detach())
            h = layer(h, context, positions)
        return drop(self.norm(h), self.dropout, self.training), torch.stack(remembered)

    def _check_symbols(self, name: str, symbols: Tensor) -> None:
        if symbols.ndim != 2 or not symbols.numel() or symbols.is_floating_point():
            raise ValueError(
                f"`{name}` must be whole numbers of shape (batch, length), "
                f"got {symbols.dtype} of shape {tuple(symbols.shape)}"
            )
        if symbols.device.type != "cpu":  # elsewhere looking at them would be waiting for them
            return
        size = self.embedding.clusters.num_symbols
        least, most = map(int, symbols.aminmax())
        if least < 0 or most >= size:
            raise ValueError(f"`{name}` must be from 0 to {size - 1}, got {least if least < 0 else most}")

    def _check_memory(self, memory: Tensor, batch: int) -> None:
        sizes = tuple(memory.shape)
        if len(sizes) != 4 or (sizes[0], sizes[1], sizes[3]) != (len(self.layers), batch, self.d_model):
            raise ValueError(
                f"`memory` must be of shape (depth {len(self.layers)}, batch {batch}, any length, "
                f"d_model {self.d_model}), got {sizes}"
            )


class Layer(nn.Module):
    """Relative attention and a feed-forward part, each added to its input and normed.

    Args:
        d_model: Of input and output.
        num_heads: Of attention.
        d_ff: Inner width of the feed-forward part.
        dropout: Share dropped of each part's output, and inside the feed-forward part.
        dropatt: Share dropped of attention weights.
        pre_norm: h + part(norm(h)) in place of norm(h + part(h)).
    """

    def __init__(
        self, d_model: int, num_heads: int, d_ff: int, *, dropout: float, dropatt: float, pre_norm: bool
    ) -> None:
        super().__init__()
        self.dropout = dropout
        self.pre_norm = pre_norm
        self.attention = RelativeAttention(d_model, num_heads, dropatt=dropatt)
        self.norm1 = nn.LayerNorm(d_model)
        self.up = nn.Linear(d_model, d_ff)
        self.down = nn.Linear(d_ff, d_model)
        self.norm2 = nn.LayerNorm(d_model)

    def forward(self, h: Tensor, context: Tensor, positions: Tensor) -> Tensor:
        """The segment (batch, length, d_model) after this layer; see `RelativeAttention.forward`."""
        if self.pre_norm:
            normed = self.norm1(context)
            h = h + self._drop(self.attention(normed[:, -h.shape[1] :], normed, positions))
            return h + self._feed(self.norm2(h))
        h = self.norm1(h + self._drop(self.attention(h, context, positions)))
        return self.norm2(h + self._feed(h))

    def _feed(self, h: Tensor) -> Tensor:
        return self._drop(self.down(self._drop(F.relu(self.up(h)))))

    def _drop(self, x: Tensor) -> Tensor:
        return drop(x, self.dropout, self.training)


def initialise(module: nn.Module, std: float = INITIAL_STD) -> None:
    """How the layers of a Transformer-XL start: weights normal with this standard deviation, biases at zero.

    For one module, as `nn.Module.apply` calls it, or `topkast.sparsify` with ``initialise=`` for what stays
    dense (sparse layers then take ``init=topkast.Normal(0.02)``).
    """
    if isinstance(module, nn.Linear | nn.Embedding):
        nn.init.normal_(module.weight, std=std)
    if isinstance(module, nn.Linear) and module.bias is not None:
        nn.init.zeros_(module.bias)


def _check_sizes(d_model: int, **sizes: int | None) -> None:
    for name, size in sizes.items():
        if size is not None and size < 1:
            raise ValueError(f"`{name}` must be at least 1, got {size}")
    if d_model < 2 or d_model % 2:
        raise ValueError(f"`d_model` must be even (positions are pairs of sine and cosine), got {d_model}")


def _check_shares(**shares: float) -> None:
    for name, share in shares.items():
        if not 0 <= share < 1:
            raise ValueError(f"`{name}` must be in [0, 1), got {share}")
