"""What users see when they print a sparse model or its statistics, or attach a wrong thing."""

from __future__ import annotations

import math
import pickle

import pytest
import torch
from torch import nn

import topkast


def make() -> tuple[nn.Module, topkast.Handle]:
    model = nn.Sequential(nn.Embedding(50, 16), nn.Linear(16, 40, bias=False), nn.Linear(40, 10))
    return model, topkast.sparsify(model, topkast.TopKAST(0.9, 0.8), engine="masked")


def test_a_printed_model_shows_bias_density_and_engine() -> None:
    model, _ = make()
    text = str(model)
    shown = "in_features=16, out_features=40, bias=False, density=0.1 (backward 0.2), engine='masked'"
    assert shown in text
    assert "in_features=40, out_features=10, bias=True, density=0.1" in text
    assert "50, 16, density=0.1 (backward 0.2), engine='masked'" in text
    fixed = nn.Sequential(nn.Conv2d(4, 8, 3))
    topkast.sparsify(fixed, topkast.Static(0.5), engine="masked")
    assert "padding_mode='zeros', bias=True, density=0.5, engine='masked'" in str(fixed)


def test_statistics_are_a_table_and_a_dict_still() -> None:
    _, sparse = make()
    stats = sparse.stats()
    lines = str(stats).splitlines()
    assert lines[0].split() == ["layer", "shape", "|A|", "D", "|B|", "step", "A", "changed", "C", "used"]
    assert lines[2].split()[:6] == ["1", "40×16", "64", "10.00", "%", "128"]
    assert max(map(len, lines)) <= 80
    assert stats == dict(stats) == pickle.loads(pickle.dumps(stats))
    assert math.isclose(stats["1"].forward_density, 0.1)


def test_a_list_of_optimizers_is_refused_in_a_line() -> None:
    model, sparse = make()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    with pytest.raises(TypeError, match="got a list; attach each by itself") as raised:
        sparse.attach([optimizer])  # pyright: ignore[reportArgumentType]
    assert "AdamW" not in str(raised.value)
