"""Text from a trained network, a byte at a time."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import nn


def generate(
    model: nn.Module,
    prompt: bytes,
    *,
    window: int,
    length: int,
    temperature: float = 0.8,
    top: int | None = None,
    seed: int = 0,
) -> Iterator[int]:
    """Draws bytes, each from p(x) ∝ exp(logit(x) / temperature) given the last `window` ones.

    Args:
        model: (batch, length) bytes → (batch, length, 256) logits, in evaluation mode.
        prompt: What they go on from; an empty one counts as a line break.
        window: The longest sequence that the network takes.
        length: How many.
        temperature: 0 takes the likeliest.
        top: If given, only this many of the likeliest are drawn from.
        seed: The same gives the same text.

    Raises:
        ValueError: An argument that is out of range.
    """
    if length < 0 or temperature < 0 or not temperature < float("inf"):
        raise ValueError(
            f"`length` and `temperature` must be at least 0 and finite, got {length} and {temperature}"
        )
    if top is not None and not 1 <= top <= 256:
        raise ValueError(f"`top` must be from 1 to 256, got {top}")
    return _draw(model, list(prompt or b"\n"), window, length, temperature, top, seed)


def _draw(
    model: nn.Module,
    text: list[int],
    window: int,
    length: int,
    temperature: float,
    top: int | None,
    seed: int,
) -> Iterator[int]:
    generator = torch.Generator().manual_seed(seed)
    for _ in range(length):
        with torch.no_grad():
            logits = model(torch.tensor([text[-window:]]))[0, -1].double()
        if top is not None:
            logits[logits < logits.topk(top).values[-1]] = -torch.inf
        if temperature == 0:
            symbol = int(logits.argmax())
        else:
            symbol = int(torch.multinomial((logits / temperature).softmax(0), 1, generator=generator))
        text = [*text[-window:], symbol]
        yield symbol
