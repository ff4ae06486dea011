"""A multi-layer perceptron."""

from __future__ import annotations

from itertools import pairwise

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
