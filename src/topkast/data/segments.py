"""Text as Transformer-XL takes it: streams side by side, in segments that continue one another."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from topkast.data.batches import generator

# What torch's cross_entropy leaves out by default.
IGNORED = -100


@dataclass(frozen=True)
class Segment:
    """One step's worth of text.

    Attributes:
        inputs: int64 ``(batch, length)``.
        targets: The symbol after each input; -100 where there is none to be counted.
        is_first: Whether the streams begin here: what is remembered of other segments must be dropped.
    """

    inputs: Tensor
    targets: Tensor
    is_first: bool

    @property
    def num_targets(self) -> int:
        """How many targets count."""
        return int((self.targets != IGNORED).sum())


@dataclass(frozen=True)
class Segments:
    """Training segments; which one comes at a step depends on (seed, epoch, step) alone.

    For a text w of n symbols let S = ⌊(n − 1) / batch⌋ and T = ⌊S / length⌋, the steps of an epoch. Segment t
    of epoch e has in row b, for 0 ≤ j < length,

        input w[p mod n], target w[(p + 1) mod n],   p = o(seed, e) + b·S + t·length + j,

    so row b of segment t + 1 continues row b of segment t. The seed chooses where an epoch begins: o is
    uniform over the text, afresh in every epoch, so that streams are cut, and remainders left out, at other
    places each time. The text is a ring for this: one stream of the epoch may run over its end into its
    beginning. Without a seed o is 0, every epoch is the same and nothing runs over the end.

    The text is looked up, never copied; it may be a mapped file.

    Args:
        text: 1-D, of integers.
        batch: How many streams.
        length: Symbols of a segment.
        seed: See above.

    Raises:
        ValueError: The text is too short for one segment of each stream.
    """

    text: Tensor
    batch: int
    length: int
    seed: int | None = None

    def __post_init__(self) -> None:
        _check(self.text, self.batch, self.length)
        if self.steps_per_epoch < 1:
            raise ValueError(
                f"the text has {len(self.text):,} symbols, but {self.batch} streams with a segment of "
                f"{self.length} need {self.batch * self.length + 1:,}; give more text, or a smaller `batch` "
                "or `length`"
            )

    @property
    def steps_per_epoch(self) -> int:
        """T in the formula."""
        return self._stream // self.length

    @property
    def _stream(self) -> int:
        return (len(self.text) - 1) // self.batch

    def at(self, step: int) -> Segment:
        """The segment of a step, counted through all epochs from 0, at the same cost whichever it is."""
        if step < 0:
            raise ValueError(f"`step` must be 0 or more, got {step}")
        epoch, t = divmod(step, self.steps_per_epoch)
        starts = self.offset(epoch) + self._stream * torch.arange(self.batch) + t * self.length
        symbols = self.text[(starts[:, None] + torch.arange(self.length + 1)) % len(self.text)].long()
        return Segment(symbols[:, :-1], symbols[:, 1:], is_first=t == 0)

    def offset(self, epoch: int) -> int:
        """o(seed, epoch): where in the text the first stream of an epoch begins."""
        if self.seed is None:
            return 0
        drawn = torch.randint(len(self.text), (), generator=generator("segments", self.seed, epoch))
        return int(drawn)


def evaluation_segments(text: Tensor, batch: int, length: int) -> Iterator[Segment]:
    """Segments in which every symbol but the first is a target exactly once.

    The n − 1 targets are cut into streams that differ by at most one in length; where a stream has ended, the
    last segment has -100 for its target. That segment may be short. The mean loss is the sum over segments of
    mean · num_targets, over n − 1. The first symbols of a stream are predicted with nothing remembered, so
    a figure to be published is best made with a small batch; with 1 there is a single beginning.

    Args:
        text: 1-D, of integers.
        batch: How many streams, at most n − 1.
        length: Symbols of a segment.
    """
    _check(text, batch, length)
    if len(text) <= batch:
        raise ValueError(
            f"the text has {len(text):,} symbols, too few for {batch} streams; give a smaller `batch`"
        )
    return _evaluation_segments(text, batch, length)


def _evaluation_segments(text: Tensor, batch: int, length: int) -> Iterator[Segment]:
    shortest, longer = divmod(len(text) - 1, batch)
    rows = torch.arange(batch)
    starts = rows * shortest + rows.clamp(max=longer)
    ends = starts + shortest + (rows < longer)
    for done in range(0, shortest + (longer > 0), length):
        width = min(length, shortest + (longer > 0) - done)
        positions = starts[:, None] + done + torch.arange(width + 1)
        # A row that has ended may look one past the text here; it is ignored below.
        symbols = text[positions.clamp(max=len(text) - 1)].long()
        targets = symbols[:, 1:].masked_fill(positions[:, 1:] > ends[:, None], IGNORED)
        yield Segment(symbols[:, :-1], targets, is_first=done == 0)


def _check(text: Tensor, batch: int, length: int) -> None:
    if text.dim() != 1 or text.is_floating_point():
        raise ValueError(f"`text` must be 1-D and of integers, got {text.dim()}-D {text.dtype}")
    for name, value in (("batch", batch), ("length", length)):
        if value < 1:
            raise ValueError(f"`{name}` must be at least 1, got {value}")
