"""Text from a trained network, a symbol at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor, nn

from topkast.data.vocabulary import Vocabulary
from topkast.models.transformer_xl import TransformerXL
from topkast.train.symbols import Bytes, Words
from topkast.train.task import Task, device_of
from topkast.train.text_tasks import RecurrentTask, TextTask


def sample(model: nn.Module, task: Task, length: int = 240) -> str | None:
    """Some text that a network in training would write from the beginning of a line; None if it is no text.

    The model is left as it was, and so are the global generators.
    """
    if not isinstance(task, TextTask | RecurrentTask):
        return None
    words = task.text.words
    symbols = Bytes() if words is None else Words(Vocabulary(words))
    inputs, before = task.inputs(), getattr(model, "memory_length", None)
    was_training = model.training
    model.eval()
    try:
        drawn = generate(
            model,
            symbols.encode("\n"),
            window=inputs["window"],
            memory=inputs.get("memory"),
            length=length,
        )
        return symbols.decode(drawn)
    finally:
        model.train(was_training)
        if isinstance(model, TransformerXL) and before is not None:
            model.memory_length = before


def generate(
    model: nn.Module,
    prompt: Sequence[int],
    *,
    window: int,
    length: int,
    memory: int | None = None,
    temperature: float = 0.8,
    top: int | None = None,
    seed: int = 0,
) -> Iterator[int]:
    """Draws symbols, each from p(x) ∝ exp(logit(x) / temperature) given those before.

    Args:
        model: In evaluation mode: a network that sees the last `window` symbols, or a Transformer-XL.
        prompt: At least one symbol that they go on from.
        window: The longest sequence that the network takes at once.
        length: How many.
        memory: Symbols that a Transformer-XL remembers.
        temperature: 0 takes the likeliest.
        top: If given, only this many of the likeliest are drawn from.
        seed: The same gives the same text.

    Raises:
        ValueError: An argument that is out of range.
    """
    if length < 0 or not 0 <= temperature < float("inf"):
        raise ValueError(
            f"`length` and `temperature` must be at least 0 and finite, got {length} and {temperature}"
        )
    if top is not None and top < 1:
        raise ValueError(f"`top` must be at least 1, got {top}")
    if not prompt:
        raise ValueError("`prompt` must have at least one symbol")
    if isinstance(model, TransformerXL):
        return _draw(_remembering(model, window, memory), prompt, length, temperature, top, seed)
    return _draw(_looking_back(model, window), prompt, length, temperature, top, seed)


def _looking_back(model: nn.Module, window: int) -> Callable[[Sequence[int]], Tensor]:
    """Logits after some more symbols, from the last `window` of all."""
    text: list[int] = []

    def logits(symbols: Sequence[int]) -> Tensor:
        text[:] = [*text, *symbols][-window:]
        return model(torch.tensor([text]).to(device_of(model)))[0, -1]

    return logits


def _remembering(model: TransformerXL, window: int, memory: int | None) -> Callable[[Sequence[int]], Tensor]:
    """The same from what is remembered: only what is new is computed."""
    if memory is not None:
        model.memory_length = memory
    remembered: Tensor | None = None

    def logits(symbols: Sequence[int]) -> Tensor:
        nonlocal remembered
        *parts, last = torch.tensor([list(symbols)]).to(device_of(model)).split(window, dim=1)
        for part in parts:
            remembered = model.hidden(part, remembered)[1]
        found, remembered = model(last, remembered)
        return found[0, -1]

    return logits


def _draw(
    logits_after: Callable[[Sequence[int]], Tensor],
    prompt: Sequence[int],
    length: int,
    temperature: float,
    top: int | None,
    seed: int,
) -> Iterator[int]:
    generator = torch.Generator().manual_seed(seed)
    symbols = prompt
    for _ in range(length):
        with torch.no_grad():
            logits = logits_after(symbols).cpu().double()
        if top is not None and top < len(logits):
            logits[logits < logits.topk(top).values[-1]] = -torch.inf
        if temperature == 0:
            symbol = int(logits.argmax())
        else:
            symbol = int(torch.multinomial((logits / temperature).softmax(0), 1, generator=generator))
        symbols = [symbol]
        yield symbol
