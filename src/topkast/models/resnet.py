"""Residual networks (He et al. 2015): of bottleneck blocks (50), of basic ones (18, 20), a quick one (9)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import torch.nn.functional as F
from torch import Tensor, nn


def _stages(
    block: Callable[[int, int, int], nn.Module], stages: Sequence[int], width: int, expansion: int = 1
) -> tuple[nn.Sequential, int]:
    """Stages of blocks, and how many channels they give; all but the first halve the picture."""
    modules, channels = nn.Sequential(), width
    for i, num_blocks in enumerate(stages):
        inner, stride = width * 2**i, 1 if i == 0 else 2
        blocks = [block(channels, inner, stride)]
        channels = expansion * inner
        blocks += [block(channels, inner, 1) for _ in range(num_blocks - 1)]
        modules.append(nn.Sequential(*blocks))
    return modules, channels


def _initialise(model: nn.Module) -> None:
    """Normal with variance 2/fan-out for convolutions; everything else as torch has it."""
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")


# ---- bottleneck blocks ---------------------------------------------------------------------------------


class ResNet50(nn.Module):
    """Stages of bottleneck blocks, with the stride in the 3×3 convolution ("v1.5").

    The defaults give the network of the paper's ImageNet experiments: 53 convolutions and one Linear layer,
    25,557,032 parameters.

    Args:
        num_classes: Outputs.
        stages: Blocks per stage; all but the first stage halve the picture and double the width.
        width: Channels of the stem, and of the first stage inside its blocks.
        zero_init: Whether each block starts as the identity, by a zero scale in its last norm
            (Goyal et al. 2017).
    """

    def __init__(
        self,
        num_classes: int = 1000,
        *,
        stages: Sequence[int] = (3, 4, 6, 3),
        width: int = 64,
        zero_init: bool = False,
    ) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, width, 7, stride=2, padding=3, bias=False)
        self.norm = nn.BatchNorm2d(width)
        self.pool = nn.MaxPool2d(3, stride=2, padding=1)
        self.stages, channels = _stages(Bottleneck, stages, width, Bottleneck.expansion)
        self.head = nn.Linear(channels, num_classes)
        _initialise(self)
        for module in self.modules():
            if isinstance(module, Bottleneck) and zero_init:
                nn.init.zeros_(module.norm3.weight)

    def forward(self, pictures: Tensor) -> Tensor:
        """(batch, 3, height, width) → (batch, num_classes) logits."""
        h = self.pool(F.relu(self.norm(self.conv(pictures))))
        return self.head(self.stages(h).mean((2, 3)))


def resnet50(num_classes: int = 1000, *, width: int = 64, zero_init: bool = False) -> ResNet50:
    """The published network; see `ResNet50`."""
    return ResNet50(num_classes, width=width, zero_init=zero_init)


class Bottleneck(nn.Module):
    """1×1 to `inner` channels, 3×3, 1×1 to four times as many, and the input added to it.

    Where the sizes differ the input goes through a 1×1 convolution of its own.
    """

    expansion = 4

    def __init__(self, channels: int, inner: int, stride: int = 1) -> None:
        super().__init__()
        outputs = self.expansion * inner
        self.conv1 = nn.Conv2d(channels, inner, 1, bias=False)
        self.norm1 = nn.BatchNorm2d(inner)
        self.conv2 = nn.Conv2d(inner, inner, 3, stride=stride, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(inner)
        self.conv3 = nn.Conv2d(inner, outputs, 1, bias=False)
        self.norm3 = nn.BatchNorm2d(outputs)
        self.shortcut = nn.Sequential()
        if stride != 1 or channels != outputs:
            self.shortcut.append(nn.Conv2d(channels, outputs, 1, stride=stride, bias=False))
            self.shortcut.append(nn.BatchNorm2d(outputs))

    def forward(self, x: Tensor) -> Tensor:
        h = F.relu(self.norm1(self.conv1(x)))
        h = F.relu(self.norm2(self.conv2(h)))
        return F.relu(self.norm3(self.conv3(h)) + self.shortcut(x))


# ---- basic blocks --------------------------------------------------------------------------------------


class BasicResNet(nn.Module):
    """A stem and stages of basic blocks; all but the first stage halve the picture and double the width.

    `resnet18` and `resnet20` make the two that are in use.

    Args:
        num_classes: Outputs.
        stem: Makes the first part, from pictures of three channels to as many as it is given.
        stages: Blocks per stage.
        width: Channels of the first stage.
        shortcut: How a block's input is added where sizes change: "A", without parameters, or "B", a 1×1
            convolution.

    Raises:
        ValueError: Another shortcut, or a size below 1.
    """

    def __init__(
        self,
        num_classes: int,
        *,
        stem: Callable[[int], nn.Module],
        stages: Sequence[int],
        width: int,
        shortcut: str,
    ) -> None:
        super().__init__()
        if shortcut not in ("A", "B"):
            raise ValueError(f"`shortcut` must be 'A' or 'B', got {shortcut!r}")
        for name, size in (("num_classes", num_classes), ("stages", min(stages)), ("width", width)):
            if size < 1:
                raise ValueError(f"`{name}` must be at least 1, got {size}")
        self.stem = stem(width)
        self.stages, channels = _stages(partial(BasicBlock, shortcut=shortcut), stages, width)
        self.head = nn.Linear(channels, num_classes)
        _initialise(self)

    def forward(self, pictures: Tensor) -> Tensor:
        """(batch, 3, height, width) → (batch, num_classes) logits."""
        return self.head(self.stages(self.stem(pictures)).mean((2, 3)))


def resnet18(
    num_classes: int = 1000, *, stages: Sequence[int] = (2, 2, 2, 2), width: int = 64
) -> BasicResNet:
    """Four stages behind ImageNet's stem: 7×7 with stride 2, then a maximum over 3×3 with stride 2.

    The defaults give 20 convolutions and one Linear layer, 11,689,512 parameters.

    Args:
        num_classes: Outputs.
        stages: Blocks per stage; (3, 4, 6, 3) is ResNet-34.
        width: Channels of the first stage.
    """
    return BasicResNet(num_classes, stem=_large_stem, stages=stages, width=width, shortcut="B")


def resnet20(num_classes: int = 10, *, depth: int = 20, width: int = 16, shortcut: str = "A") -> BasicResNet:
    """Three stages of n blocks behind one 3×3 convolution, 6n + 2 layers, for small pictures (section 4.2).

    The defaults give 19 convolutions and one Linear layer, 269,722 parameters, the 0.27 M of the paper's
    CIFAR-10 table.

    Args:
        num_classes: Outputs.
        depth: 6n + 2: 20, 32, 44, 56, 110.
        width: Channels of the first stage.
        shortcut: "A", which has no parameters, is what the paper took for CIFAR. "B" adds 2,752 parameters.

    Raises:
        ValueError: `depth` is no 6n + 2, or another shortcut.
    """
    if depth < 8 or depth % 6 != 2:
        raise ValueError(f"`depth` must be 6n + 2, such as 20, 32 or 56, got {depth}")
    return BasicResNet(num_classes, stem=_small_stem, stages=[depth // 6] * 3, width=width, shortcut=shortcut)


def _large_stem(width: int) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, width, 7, stride=2, padding=3, bias=False),
        nn.BatchNorm2d(width),
        nn.ReLU(),
        nn.MaxPool2d(3, stride=2, padding=1),
    )


def _small_stem(width: int) -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU())


class BasicBlock(nn.Module):
    """Two 3×3 convolutions, and the input added to what they give.

    Args:
        channels: Of the input.
        outputs: Of the output.
        stride: Of the first convolution.
        shortcut: "A" or "B", where channels or stride change the size; see `BasicResNet`.
    """

    def __init__(self, channels: int, outputs: int, stride: int = 1, shortcut: str = "B") -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, outputs, 3, stride=stride, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(outputs)
        self.shortcut = nn.Sequential()
        if stride == 1 and channels == outputs:
            return
        if shortcut == "A":
            self.shortcut.append(Subsample(stride, outputs - channels))
        else:
            self.shortcut.append(nn.Conv2d(channels, outputs, 1, stride=stride, bias=False))
            self.shortcut.append(nn.BatchNorm2d(outputs))

    def forward(self, x: Tensor) -> Tensor:
        h = F.relu(self.norm1(self.conv1(x)))
        return F.relu(self.norm2(self.conv2(h)) + self.shortcut(x))


class Subsample(nn.Module):
    """The shortcut without parameters: every `stride`-th pixel, and zeros for `extra` more channels."""

    def __init__(self, stride: int, extra: int) -> None:
        super().__init__()
        self.stride = stride
        self.extra = extra

    def forward(self, x: Tensor) -> Tensor:
        return F.pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, 0, self.extra))


# ---- nine layers that learn fast -----------------------------------------------------------------------


class ResNet9(nn.Module):
    """Eight convolutions and one Linear layer, made to learn small pictures in minutes on a CPU.

    After the network of that name in DAWNBench's contests on CIFAR-10, with pooling behind the first
    convolution already: a third of the products, and most of them where there are many channels.

        w, pool · 2w, pool · residual 2w · 4w, pool · 8w · residual 8w · maximum of each channel · head

    All convolutions are 3×3; a residual part adds two of them to its input. The norm stands behind the
    pooling, where pictures are smaller. The defaults have 1,646,112 parameters.

    Args:
        num_classes: Outputs.
        width: Channels of the first convolution, w.
        channels: Of the pictures.
        head_scale: What logits are multiplied by: a small one keeps the first steps calm at a high rate.
    """

    def __init__(
        self, num_classes: int = 10, *, width: int = 32, channels: int = 3, head_scale: float = 0.125
    ) -> None:
        super().__init__()
        for name, size in (("num_classes", num_classes), ("width", width), ("channels", channels)):
            if size < 1:
                raise ValueError(f"`{name}` must be at least 1, got {size}")
        self.head_scale = head_scale
        self.stages = nn.Sequential(
            _normed(channels, width, pools=True),
            _normed(width, 2 * width, pools=True),
            Residual(2 * width),
            _normed(2 * width, 4 * width, pools=True),
            _normed(4 * width, 8 * width),
            Residual(8 * width),
        )
        self.head = nn.Linear(8 * width, num_classes, bias=False)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, nonlinearity="relu")

    def forward(self, pictures: Tensor) -> Tensor:
        """(batch, channels, height, width) → (batch, num_classes) logits; pictures of 8 pixels or more."""
        return self.head_scale * self.head(self.stages(pictures).amax((2, 3)))


def _normed(channels: int, outputs: int, *, pools: bool = False) -> nn.Sequential:
    """A 3×3 convolution, its maximum over 2×2 if it pools, norm and ReLU."""
    convolution = nn.Conv2d(channels, outputs, 3, padding=1, bias=False)
    pool = [nn.MaxPool2d(2)] if pools else []
    return nn.Sequential(convolution, *pool, nn.BatchNorm2d(outputs), nn.ReLU())


class Residual(nn.Module):
    """x + f(g(x)), both a 3×3 convolution with norm and ReLU."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first = _normed(channels, channels)
        self.second = _normed(channels, channels)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.second(self.first(x))
