"""Whole networks whose training steps are timed: how each is made, what its loss is, who takes the step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from topkast.models import Decoder, TransformerXL, resnet50

NUM_SYMBOLS = 256
WINDOW = 128
HEAD = 64
_SEGMENT = 512


@dataclass(frozen=True)
class Subject:
    """A network in training.

    Attributes:
        name: For tables.
        model: Makes it, dense.
        loss: On one batch, always the same.
        optimizer: As the paper's experiments have it.
        keep_dense: Layers that stay dense, as for `topkast.sparsify`.
        is_sensitive: Whether float32 is too coarse for gradients to be compared element by element: at its
            start ResNet-50 turns rounding into differences of a tenth, dense and sparse alike, and queries
            of attention get gradients that are small differences of large numbers. Then they are compared in
            float64.
    """

    name: str
    model: Callable[[], nn.Module]
    loss: Callable[[Any], Tensor]
    optimizer: Callable[[Any], torch.optim.Optimizer]
    keep_dense: tuple[str, ...] = ()
    is_sensitive: bool = False


def _adam(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.Adam(parameters, lr=1e-4)


def decoder(width: int, depth: int, tokens: int) -> Subject:
    """A GPT-style decoder on windows of 128 symbols."""
    window = min(WINDOW, tokens)
    symbols = torch.randint(NUM_SYMBOLS, (tokens // window, window + 1))

    def loss(model: nn.Module) -> Tensor:
        logits = model(symbols[:, :-1])
        return F.cross_entropy(logits.flatten(0, 1), symbols[:, 1:].flatten())

    return Subject(
        f"decoder, width {width}, depth {depth}, {tokens} tokens",
        lambda: Decoder(NUM_SYMBOLS, width, depth, max(1, width // HEAD), window),
        loss,
        _adam,
    )


def transformer_xl(width: int, depth: int, tokens: int) -> Subject:
    """A Transformer-XL with d_ff = 4·width on segments of 512 symbols, with as many remembered."""
    segment = min(_SEGMENT, tokens)
    symbols = torch.randint(NUM_SYMBOLS, (tokens // segment, segment + 1))
    memory = torch.randn(depth, tokens // segment, segment, width)

    def loss(model: TransformerXL) -> Tensor:
        dtype = next(model.parameters()).dtype
        return model.loss(symbols[:, :-1], symbols[:, 1:], memory.to(dtype))[0]

    heads = max(1, width // HEAD)
    return Subject(
        f"Transformer-XL, width {width}, depth {depth}, {tokens} tokens and as many remembered",
        lambda: TransformerXL(
            NUM_SYMBOLS, depth=depth, d_model=width, num_heads=heads, d_ff=4 * width, memory_length=segment
        ),
        loss,
        _adam,
        is_sensitive=True,
    )


def residual(batch: int, side: int) -> Subject:
    """ResNet-50 on random images, with the paper's first and last layer dense."""
    images, labels = torch.randn(batch, 3, side, side), torch.randint(1000, (batch,))

    def loss(model: nn.Module) -> Tensor:
        dtype = next(model.parameters()).dtype
        return F.cross_entropy(model(images.to(dtype)), labels)

    return Subject(
        f"ResNet-50, {batch} images of {side} px",
        resnet50,
        loss,
        lambda parameters: torch.optim.SGD(parameters, lr=0.01, momentum=0.9),
        ("first", "last"),
        is_sensitive=True,
    )
