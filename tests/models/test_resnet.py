"""ResNet-50 is the published network, at any width and on the meta device too."""

from __future__ import annotations

import torch
from torch import nn

from topkast.models import ResNet50


def test_the_parameters_are_those_of_the_published_network() -> None:
    with torch.device("meta"):
        model = ResNet50()
    assert sum(p.numel() for p in model.parameters()) == 25_557_032
    layers = [m for m in model.modules() if isinstance(m, nn.Conv2d | nn.Linear)]
    assert len(layers) == 54
    assert model(torch.empty(2, 3, 224, 224, device="meta")).shape == (2, 1000)


def test_the_stride_is_in_the_middle_convolution() -> None:
    with torch.device("meta"):
        model = ResNet50()
    strided = [name for name, m in model.named_modules() if isinstance(m, nn.Conv2d) and m.stride == (2, 2)]
    stages = [f"stages.{i}.0.{part}" for i in (1, 2, 3) for part in ("conv2", "shortcut.0")]
    assert strided == ["conv", *stages]


def test_a_small_one_learns() -> None:
    torch.manual_seed(0)
    model = ResNet50(5, stages=(1, 2), width=8)
    x, y = torch.randn(16, 3, 32, 32), torch.randint(5, (16,))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for _ in range(12):
        loss = nn.functional.cross_entropy(model(x), y)
        losses.append(loss.item())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert losses[-1] < 0.5 * losses[0]


def test_blocks_can_start_as_the_identity() -> None:
    model = ResNet50(5, stages=(2,), width=8, zero_init=True)
    h = torch.randn(2, 32, 4, 4).relu()
    torch.testing.assert_close(model.stages[0][1](h), h)  # pyright: ignore[reportIndexIssue]
