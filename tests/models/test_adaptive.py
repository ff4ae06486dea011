"""Adaptive embedding and softmax: a full softmax where there is one cluster, a distribution where there are more."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from topkast.models.adaptive import AdaptiveEmbedding, AdaptiveSoftmax, Clusters, Transposed

CUT = Clusters(20, 8, 12, (5, 9), 2)


def test_one_cluster_is_an_ordinary_embedding_and_softmax() -> None:
    torch.manual_seed(0)
    clusters = Clusters(20, 12, 12)
    embedding = AdaptiveEmbedding(clusters)
    softmax = AdaptiveSoftmax(clusters, tied=embedding)
    symbols, hidden = torch.randint(20, (3, 4)), torch.randn(3, 4, 12)
    table = embedding.tables[0].weight
    assert isinstance(table, nn.Parameter)
    torch.testing.assert_close(embedding(symbols), table[symbols] * math.sqrt(12))
    logits = hidden @ table.T + softmax.tables[0].bias
    torch.testing.assert_close(softmax(hidden), logits)
    expected = F.cross_entropy(logits.flatten(0, 1), symbols.flatten(), reduction="none").view(3, 4)
    torch.testing.assert_close(softmax.nll(hidden, symbols), expected)


def test_a_narrower_embedding_is_projected() -> None:
    clusters = Clusters(20, 6, 12)
    embedding = AdaptiveEmbedding(clusters)
    softmax = AdaptiveSoftmax(clusters, tied=embedding, tie_projections=True)
    assert embedding.projections[0].weight is softmax.projections[0].weight
    hidden = torch.randn(2, 12)
    expected = (hidden @ embedding.projections[0].weight) @ embedding.tables[0].weight.T  # pyright: ignore
    torch.testing.assert_close(softmax(hidden), expected + softmax.tables[0].bias)


def test_each_symbol_is_embedded_by_its_cluster() -> None:
    embedding = AdaptiveEmbedding(CUT)
    assert [tuple(t.weight.shape) for t in embedding.tables] == [(5, 8), (4, 4), (11, 2)]  # pyright: ignore
    for symbol, (cluster, row) in {
        0: (0, 0),
        4: (0, 4),
        5: (1, 0),
        8: (1, 3),
        9: (2, 0),
        19: (2, 10),
    }.items():
        own = embedding.projections[cluster](embedding.tables[cluster].weight[row])  # pyright: ignore
        torch.testing.assert_close(embedding(torch.tensor([symbol]))[0], own * math.sqrt(12))


@pytest.mark.parametrize("ties", [False, True, (False, True, True)])
def test_probabilities_sum_to_one_and_the_loss_is_theirs(ties: bool | tuple[bool, ...]) -> None:
    torch.manual_seed(0)
    softmax = AdaptiveSoftmax(CUT, tied=AdaptiveEmbedding(CUT), tie_projections=ties)
    hidden = torch.randn(40, 12)
    log_prob = softmax(hidden)
    torch.testing.assert_close(log_prob.exp().sum(-1), torch.ones(40))
    targets = torch.arange(40) % 20
    expected = -log_prob.gather(1, targets[:, None]).squeeze(1)
    torch.testing.assert_close(softmax.nll(hidden, targets), expected)


def test_gradients_of_the_loss_are_those_of_the_probabilities() -> None:
    torch.manual_seed(0)
    softmax = AdaptiveSoftmax(CUT)
    hidden, targets = torch.randn(40, 12, requires_grad=True), torch.randint(20, (40,))
    wanted = [hidden, *softmax.parameters()]
    ours = torch.autograd.grad(softmax.nll(hidden, targets).sum(), wanted)
    theirs = torch.autograd.grad(-softmax(hidden).gather(1, targets[:, None]).sum(), wanted)
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b)


def test_a_tail_without_targets_costs_nothing_and_breaks_nothing() -> None:
    softmax = AdaptiveSoftmax(CUT)
    loss = softmax.nll(torch.randn(3, 12), torch.tensor([0, 1, 2])).sum()
    loss.backward()
    assert not softmax.tables[1].weight.grad.any()  # pyright: ignore


def test_ignored_targets_cost_nothing() -> None:
    hidden, targets = torch.randn(3, 12), torch.tensor([3, -100, 15])
    for clusters in (CUT, Clusters(20, 12, 12)):
        softmax = AdaptiveSoftmax(clusters)
        loss = softmax.nll(hidden, targets)
        assert loss[1] == 0
        torch.testing.assert_close(loss[[0, 2]], softmax.nll(hidden[[0, 2]], targets[[0, 2]]))


def test_a_transposed_layer_shares_its_weight() -> None:
    layer = nn.Linear(3, 5, bias=False)
    x = torch.randn(2, 5)
    torch.testing.assert_close(Transposed(layer)(x), x @ layer.weight)


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ((20, 8, 12, (9, 5), 2), r"`cutoffs` must increase, from above 0 to below `num_symbols` \(20\), got \(9, 5\)"),
        ((20, 8, 12, (5, 20), 2), r"`cutoffs` must increase"),
        ((20, 8, 12, (0, 5), 2), r"`cutoffs` must increase"),
        ((20, 6, 12, (5, 9), 2), r"`d_embed` \(6\) must be divisible by `div_val` once for each of the 2 cutoffs, got 2"),
        ((0, 8, 12), r"`num_symbols` must be at least 1, got 0"),
        ((20, 8, 12, (), 0), r"`div_val` must be at least 1, got 0"),
    ],
)  # fmt: skip
def test_clusters_that_cannot_be(sizes: tuple, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Clusters(*sizes)


def test_projections_are_tied_to_something_for_each_cluster() -> None:
    with pytest.raises(ValueError, match=r"an entry for each of 3 clusters, got \[True, False\]"):
        AdaptiveSoftmax(CUT, tied=AdaptiveEmbedding(CUT), tie_projections=(True, False))
    with pytest.raises(ValueError, match=r"`tie_projections` needs tied embeddings, got True"):
        AdaptiveSoftmax(CUT, tie_projections=True)
