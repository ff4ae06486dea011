"""The residual networks are the published ones, at any width and on the meta device too."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import topkast
from topkast.cost.parameters import parameters
from topkast.models import ResNet9, ResNet50, resnet18, resnet20, resnet50
from topkast.models.resnet import BasicBlock, Residual, Subsample


def count(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize(
    ("make", "parameters", "layers", "size"),
    [
        (resnet50, 25_557_032, 54, 224),
        (resnet18, 11_689_512, 21, 224),
        (lambda: resnet18(stages=(3, 4, 6, 3)), 21_797_672, 37, 224),  # ResNet-34
        (resnet20, 269_722, 20, 32),
        (lambda: resnet20(depth=32), 464_154, 32, 32),
        (lambda: resnet20(depth=56), 853_018, 56, 32),
        (lambda: resnet20(depth=110), 1_727_962, 110, 32),
    ],
)
def test_parameters_layers_and_outputs(make, parameters: int, layers: int, size: int) -> None:
    with torch.device("meta"):
        model = make()
        logits = model(torch.empty(2, 3, size, size))
    assert count(model) == parameters
    assert sum(isinstance(m, nn.Conv2d | nn.Linear) for m in model.modules()) == layers
    assert logits.shape == (2, model.head.out_features)


def test_stages_halve_the_picture() -> None:
    sizes = []
    with torch.device("meta"):
        model = resnet20()
        for stage in model.stages:
            stage.register_forward_hook(lambda m, x, y: sizes.append(tuple(y.shape[1:])))
        model(torch.empty(2, 3, 32, 32))
    assert sizes == [(16, 32, 32), (32, 16, 16), (64, 8, 8)]


def test_the_shortcut_without_parameters_by_eye() -> None:
    x = torch.arange(16.0).view(1, 1, 4, 4)
    y = Subsample(2, 1)(x)
    assert y[0, 0].tolist() == [[0, 2], [8, 10]]
    assert y[0, 1].tolist() == [[0, 0], [0, 0]]
    assert not list(BasicBlock(4, 8, 2, "A").shortcut.parameters())


def test_the_shortcut_with_parameters() -> None:
    assert count(resnet20(shortcut="B")) - count(resnet20()) == 16 * 32 + 2 * 32 + 32 * 64 + 2 * 64


def test_it_trains_sparse() -> None:
    torch.manual_seed(0)
    model = resnet20(5, depth=8, width=8)
    total = count(model)
    sparse = topkast.sparsify(model, topkast.TopKAST(0.8, 0.5), budget="model", keep_dense=("first", "last"))
    optimizer = sparse.attach(torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9))
    x, y = torch.randn(16, 3, 16, 16), torch.randint(5, (16,))
    losses = []
    for _ in range(12):
        loss = nn.functional.cross_entropy(model(x), y)
        losses.append(loss.item())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    assert losses[-1] < 0.5 * losses[0]
    assert parameters(model, sparse.weights).used == round(0.2 * total)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"depth": 21}, r"`depth` must be 6n \+ 2, such as 20, 32 or 56, got 21"),
        ({"depth": 2}, r"`depth` must be 6n \+ 2"),
        ({"shortcut": "C"}, r"`shortcut` must be 'A' or 'B', got 'C'"),
        ({"width": -1}, r"`width` must be at least 1, got -1"),
        ({"num_classes": 0}, r"`num_classes` must be at least 1, got 0"),
    ],
)
def test_sizes_that_cannot_be(options: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        resnet20(**options)


def test_no_stage_is_empty() -> None:
    with pytest.raises(ValueError, match=r"`stages` must be at least 1, got 0"):
        resnet18(stages=(2, 0))


# ---- ResNet-50 -----------------------------------------------------------------------------------------


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


@pytest.mark.parametrize(("channels", "side"), [(3, 32), (1, 28), (2, 8)])
def test_resnet9_takes_small_pictures_of_any_channels(channels: int, side: int) -> None:
    model = ResNet9(7, width=4, channels=channels)
    logits = model(torch.randn(2, channels, side, side))
    assert logits.shape == (2, 7)
    logits.sum().backward()
    assert all(p.grad is not None for p in model.parameters())


def test_resnet9_has_the_parameters_that_it_says() -> None:
    assert f"{count(ResNet9()):,}" in (ResNet9.__doc__ or "")
    convolutions = [m for m in ResNet9().modules() if isinstance(m, nn.Conv2d)]
    assert [(m.in_channels, m.out_channels) for m in convolutions] == [
        (3, 32), (32, 64), (64, 64), (64, 64), (64, 128), (128, 256), (256, 256), (256, 256),
    ]  # fmt: skip


def test_a_residual_part_of_resnet9_adds_to_its_input() -> None:
    part = Residual(3).eval()
    x = torch.randn(1, 3, 4, 4)
    assert torch.equal(part(x), x + part.second(part.first(x)))


def test_resnet9_scales_its_logits() -> None:
    torch.manual_seed(0)
    model, x = ResNet9(width=2).eval(), torch.randn(1, 3, 16, 16)
    before = model(x)
    model.head_scale *= 2
    assert torch.allclose(model(x), 2 * before)


@pytest.mark.parametrize("name", ["num_classes", "width", "channels"])
def test_resnet9_refuses_sizes_below_one(name: str) -> None:
    with pytest.raises(ValueError, match=f"`{name}` must be at least 1, got 0"):
        ResNet9(**{name: 0})
