"""ResNet-50 and its kin: residual networks of bottleneck blocks (He et al. 2015)."""

from __future__ import annotations

from collections.abc import Sequence

import torch.nn.functional as F
from torch import Tensor, nn


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
        channels = width
        self.stages = nn.Sequential()
        for i, num_blocks in enumerate(stages):
            inner, stride = width * 2**i, 1 if i == 0 else 2
            blocks = [Bottleneck(channels, inner, stride)]
            channels = Bottleneck.expansion * inner
            blocks += [Bottleneck(channels, inner) for _ in range(num_blocks - 1)]
            self.stages.append(nn.Sequential(*blocks))
        self.head = nn.Linear(channels, num_classes)
        self._initialise(zero_init)

    def _initialise(self, zero_init: bool) -> None:
        """Normal with variance 2/fan-out for convolutions; everything else as torch has it."""
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
            elif isinstance(module, Bottleneck) and zero_init:
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
