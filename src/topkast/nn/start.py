"""How layers start: the distribution that a torch layer draws its weight from, and its bias."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn

from topkast.core.initial import Initial, Normal, fans, initial

_KNOWN: tuple[type[nn.Module], ...] = (nn.Linear, nn.Embedding, nn.Conv1d, nn.Conv2d, nn.Conv3d)


def own_initial(layer: Any, shape: tuple[int, ...]) -> Initial:
    """What the layer's own `reset_parameters` draws its weight from.

    Raises:
        ValueError: The layer has an initialisation that is not torch's.
    """
    for known in _KNOWN:
        if isinstance(layer, known) and type(layer).reset_parameters is known.reset_parameters:  # pyright: ignore
            return Normal(1.0) if known is nn.Embedding else initial("torch", shape)
    raise ValueError(
        f"{type(layer).__name__} has an initialisation of its own, whose distribution is not known; "
        "name it with `init`, such as topkast.Normal(0.02)"
    )


@torch.no_grad()
def start_bias(bias: nn.Parameter | None, shape: tuple[int, ...]) -> None:
    """Uniform in ±1/√fan-in of a weight of this shape, as torch's Linear and Conv do."""
    if bias is not None:
        bound = 1 / math.sqrt(fans(shape)[0])
        bias.uniform_(-bound, bound)
