"""Adaptive inputs and the adaptive softmax: rare symbols get narrower embeddings.

Symbols are ordered by frequency and cut into clusters at `cutoffs`: the head, with the most frequent, and
tails. Cluster i is embedded in d_embed/div_valⁱ numbers (Baevski and Auli 2018), and p(symbol) of a tail is
p(tail)·p(symbol | tail) (Grave et al. 2016), so that most symbols cost a softmax over the head only. Without
cutoffs there is one cluster, and both are an ordinary embedding and an ordinary softmax.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

# A target that does not count, as `F.cross_entropy` has it by default.
IGNORED = -100


@dataclass(frozen=True)
class Clusters:
    """How symbols are cut into clusters, and how wide the embedding of each is.

    Attributes:
        num_symbols: Size of the vocabulary.
        d_embed: Width of the head's embedding.
        d_model: Width of the network.
        cutoffs: First symbol of each tail; empty for a single cluster.
        div_val: Each cluster is that many times narrower than the one before.
    """

    num_symbols: int
    d_embed: int
    d_model: int
    cutoffs: tuple[int, ...] = ()
    div_val: int = 1

    def __post_init__(self) -> None:
        for name in ("num_symbols", "d_embed", "d_model", "div_val"):
            if getattr(self, name) < 1:
                raise ValueError(f"`{name}` must be at least 1, got {getattr(self, name)}")
        if any(a >= b for a, b in pairwise((0, *self.cutoffs, self.num_symbols))):
            raise ValueError(
                f"`cutoffs` must increase, from above 0 to below `num_symbols` ({self.num_symbols}), "
                f"got {self.cutoffs}"
            )
        if self.d_embed % self.div_val ** len(self.cutoffs):
            raise ValueError(
                f"`d_embed` ({self.d_embed}) must be divisible by `div_val` once for each of the "
                f"{len(self.cutoffs)} cutoffs, got {self.div_val}"
            )

    @property
    def ranges(self) -> list[tuple[int, int]]:
        """First symbol and the one after the last, of each cluster."""
        return list(pairwise((0, *self.cutoffs, self.num_symbols)))

    @property
    def widths(self) -> list[int]:
        """Of each cluster's embedding."""
        return [self.d_embed // self.div_val**i for i in range(len(self.cutoffs) + 1)]

    def is_projected(self, width: int) -> bool:
        """Whether there is a projection between an embedding of this width and the network.

        With clusters of several widths there is one for all of them, the head too, as in Dai et al.
        """
        return self.div_val > 1 or width != self.d_model


class AdaptiveEmbedding(nn.Module):
    """Looks symbols up: √d_model · P_i·E_i[symbol], with E_i and P_i of the cluster the symbol is in.

    Args:
        clusters: Which symbols, how wide.
    """

    def __init__(self, clusters: Clusters) -> None:
        super().__init__()
        self.clusters = clusters
        self.tables = nn.ModuleList()
        self.projections = nn.ModuleList()
        for (first, end), width in zip(clusters.ranges, clusters.widths, strict=True):
            self.tables.append(nn.Embedding(end - first, width))
            self.projections.append(
                nn.Linear(width, clusters.d_model, bias=False)
                if clusters.is_projected(width)
                else nn.Identity()
            )

    def forward(self, symbols: Tensor) -> Tensor:
        """(…) symbols → (…, d_model)."""
        scale = math.sqrt(self.clusters.d_model)
        if len(self.tables) == 1:
            return self.projections[0](self.tables[0](symbols)) * scale
        embedded: Tensor | float = 0.0
        # Every cluster embeds every symbol, those of others as if they were its first, and keeps its own. The
        # projections are too small a part of a network to be worth picking symbols out, and shapes then do
        # not depend on which symbols there are.
        for (first, end), table, projection in zip(
            self.clusters.ranges, self.tables, self.projections, strict=True
        ):
            is_here = (symbols >= first) & (symbols < end)
            own = projection(table(torch.where(is_here, symbols - first, 0)))
            embedded = embedded + own * is_here.unsqueeze(-1)
        assert isinstance(embedded, Tensor)
        return embedded * scale


class Transposed(nn.Module):
    """y = x·W with the weight W of another layer, for a projection that goes both ways.

    Args:
        layer: A Linear layer from outputs to inputs, whose weight is shared.
    """

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__()
        self.weight = layer.weight

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.weight


class AdaptiveSoftmax(nn.Module):
    """Probabilities of symbols:

        p(s | h) = softmax([E_0·P_0·h + b_0; c·P_0·h + b_c])_s                     s in the head
        p(s | h) = p(tail i | h) · softmax(E_i·P_i·h + b_i)_s                      s in tail i

    where the rows of c stand for the tails.

    Args:
        clusters: Which symbols, how wide.
        tied: An embedding of the same clusters whose tables E_i are to be shared.
        tie_projections: Whether P_i is shared with it too, transposed: for all clusters, or for each.

    Raises:
        ValueError: `tie_projections` does not fit the clusters, or asks for what is not tied.
    """

    def __init__(
        self,
        clusters: Clusters,
        *,
        tied: AdaptiveEmbedding | None = None,
        tie_projections: bool | Sequence[bool] = False,
    ) -> None:
        super().__init__()
        self.clusters = clusters
        ties = _ties(tie_projections, clusters, tied)
        self.projections = nn.ModuleList()
        self.tables = nn.ModuleList()
        for i, ((first, end), width) in enumerate(zip(clusters.ranges, clusters.widths, strict=True)):
            self.projections.append(
                self._projection(width, tied.projections[i] if tied and ties[i] else None)
            )
            table = nn.Linear(width, end - first)
            if tied is not None:
                table.weight = tied.tables[i].weight  # pyright: ignore[reportAttributeAccessIssue]
            self.tables.append(table)
        self.tails = nn.Linear(clusters.widths[0], len(clusters.cutoffs)) if clusters.cutoffs else None

    def _projection(self, width: int, tied: nn.Module | None) -> nn.Module:
        if not self.clusters.is_projected(width):
            return nn.Identity()
        if isinstance(tied, nn.Linear):
            return Transposed(tied)
        return nn.Linear(self.clusters.d_model, width, bias=False)

    def forward(self, hidden: Tensor) -> Tensor:
        """(…, d_model) → (…, num_symbols): logits, which with cutoffs are log-probabilities."""
        if self.tails is None:
            return self._logits(0, hidden)
        head = F.log_softmax(self._head(hidden), dim=-1)
        size = self.clusters.cutoffs[0]
        parts = [head[..., :size]]
        for i in range(1, len(self.tables)):
            within = F.log_softmax(self._logits(i, hidden), dim=-1)
            parts.append(within + head[..., size + i - 1, None])
        return torch.cat(parts, dim=-1)

    def nll(self, hidden: Tensor, targets: Tensor) -> Tensor:
        """-log p(target | h), computing a tail's softmax only for the targets that are in it.

        Args:
            hidden: (…, d_model).
            targets: (…) symbols, or `IGNORED`.

        Returns:
            (…), of the shape of `targets`; zero where they are to be ignored.
        """
        h, flat = hidden.flatten(0, -2), targets.flatten()
        if self.tails is None:
            return F.cross_entropy(self._logits(0, h), flat, reduction="none").view_as(targets)
        size = self.clusters.cutoffs[0]
        # Which entry of the head's softmax: the symbol itself, or its tail. `IGNORED` stays as it is.
        bounds = torch.tensor(self.clusters.cutoffs, device=flat.device)
        cluster = torch.bucketize(flat, bounds, right=True)
        entry = torch.where(cluster == 0, flat, size - 1 + cluster)
        loss = F.cross_entropy(self._head(h), entry, reduction="none")
        for i in range(1, len(self.tables)):
            rows = (cluster == i).nonzero().squeeze(1)
            within = flat[rows] - self.clusters.ranges[i][0]
            part = F.cross_entropy(self._logits(i, h[rows]), within, reduction="none")
            loss = loss.index_add(0, rows, part.to(loss.dtype))
        return loss.view_as(targets)

    def _logits(self, i: int, hidden: Tensor) -> Tensor:
        """Of the symbols of one cluster."""
        return self.tables[i](self.projections[i](hidden))

    def _head(self, hidden: Tensor) -> Tensor:
        """Logits of the head's symbols and of the tails."""
        assert self.tails is not None
        projected = self.projections[0](hidden)
        return torch.cat((self.tables[0](projected), self.tails(projected)), dim=-1)


def _ties(
    wanted: bool | Sequence[bool], clusters: Clusters, embedding: AdaptiveEmbedding | None
) -> list[bool]:
    """Whether each cluster's projection is shared."""
    count = len(clusters.cutoffs) + 1
    ties = [wanted] * count if isinstance(wanted, bool) else list(wanted)
    if len(ties) != count:
        raise ValueError(f"`tie_projections` must have an entry for each of {count} clusters, got {ties}")
    if any(ties) and embedding is None:
        raise ValueError(f"`tie_projections` needs tied embeddings, got {wanted} without them")
    return ties
