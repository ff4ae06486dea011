"""A decoder's own start: positions and the embedding."""

from __future__ import annotations

import pytest
import torch

from topkast.models.simple import Decoder


def test_an_embedding_starts_with_the_standard_deviation_that_is_asked_for() -> None:
    torch.manual_seed(0)
    model = Decoder(256, width=64, depth=1, num_heads=2, window=32, embedding_std=0.3)
    assert model.embedding.weight.std().item() == pytest.approx(0.3, rel=0.05)
    assert model.position.std().item() == pytest.approx(0.02, rel=0.05)


@pytest.mark.parametrize("std", [0.0, -0.1, float("nan")])
def test_an_embedding_without_a_spread_is_refused(std: float) -> None:
    with pytest.raises(ValueError, match=r"`embedding_std` must be above 0, got"):
        Decoder(256, width=8, depth=1, num_heads=2, window=4, embedding_std=std)
