"""Language modelling by segments that continue one another, by a Transformer-XL that remembers."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from topkast.data.segments import Segments, evaluation_segments
from topkast.models.network import Network
from topkast.models.transformer_xl import TransformerXL
from topkast.train import texts
from topkast.train.task import Task

VOCABULARY = "vocabulary.txt"


@dataclass
class RecurrentTask(Task):
    """Bytes or words, in streams side by side; the memory of one segment is given to the next.

    Quality in training is that of `held_out_segments` segments of the validation text; as published it is
    that of the test text (its first `test_limit` symbols), in one stream, with `eval_memory`. With
    `is_unread` a published text is not read: enough for a forecast.
    """

    dataset: str | None = None
    data: Path | None = None
    limit: int | None = None
    test_limit: int | None = None
    seed: int = 0
    width: int = 256
    depth: int = 4
    heads: int = 4
    inner: int | None = None
    window: int = 128
    memory: int = 128
    eval_memory: int | None = None
    dropout: float = 0.0
    cutoffs: tuple[int, ...] = ()
    div_val: int = 1
    batch: int = 8
    is_unread: bool = False

    higher_is_better = False
    steps = 800
    lr = 1e-3
    held_out_segments = 16

    def __post_init__(self) -> None:
        if self.is_unread and self.dataset is not None:
            self.text = texts.unread(self.dataset)
        else:
            self.text = texts.read(self.dataset, self.data, self.limit)
            self.segments = Segments(self.text.train, self.batch, self.window, self.seed)
        is_bytes = self.text.words is None
        self.quality_name = "bits per byte" if is_bytes else "perplexity"
        self.unit = "bytes" if is_bytes else "words"
        self.units_per_step = self.batch * self.window
        self.title = (
            f"{self.unit} of {self.text.where}: {len(self.text.train):,} for training, "
            f"{len(self.text.valid):,} held out"
        )
        if self.text.test is not self.text.valid:
            self.title += f", {len(self.text.test):,} for testing"
            part = "all" if self.test_limit is None else f"{self.test_limit:,} {self.unit}"
            self.whole_name = f"over {part} of the test text, with a memory of {self._eval_memory:,}"
        self._remembered: Tensor | None = None

    def sizes(self) -> dict[str, Any]:
        names = ("width", "depth", "heads", "window", "memory", "dropout", "cutoffs", "div_val", "batch")
        sizes = {name: getattr(self, name) for name in names}
        return {**sizes, "inner": self._inner, "eval_memory": self._eval_memory}

    @property
    def _inner(self) -> int:
        return 3 * self.width if self.inner is None else self.inner

    @property
    def _eval_memory(self) -> int:
        return 4 * self.memory if self.eval_memory is None else self.eval_memory

    def network(self) -> Network:
        arguments = {
            "num_symbols": self.text.num_symbols,
            "depth": self.depth,
            "d_model": self.width,
            "num_heads": self.heads,
            "d_ff": self._inner,
            "memory_length": self.memory,
            "dropout": self.dropout,
            "dropatt": self.dropout,
        }
        if self.text.words is None:
            return Network("transformer-xl", {**arguments, "tie_biases": True})
        # The tails' projections are tied, the head's is not: docs/networks.md.
        tied = (False, *(True for _ in self.cutoffs)) if self.div_val > 1 else False
        return Network(
            "transformer-xl",
            {**arguments, "cutoffs": self.cutoffs, "div_val": self.div_val, "tie_projections": tied},
        )

    def inputs(self) -> dict[str, Any]:
        return {"symbols": self.unit, "window": self.window, "memory": self._eval_memory}

    def files(self) -> dict[str, str]:
        return {} if self.text.words is None else {VOCABULARY: "\n".join(self.text.words) + "\n"}

    def example(self) -> tuple[Tensor, Tensor]:
        symbols = torch.zeros(self.batch, self.window, dtype=torch.int64)
        return symbols, torch.zeros(self.depth, self.batch, self.memory, self.width)

    def loss(self, model: nn.Module, step: int, generator: torch.Generator) -> Tensor:
        assert isinstance(model, TransformerXL)
        segment = self.segments.at(step)
        remembered = None if segment.is_first else self._remembered
        rows = self.share.of(self.batch)
        loss, self._remembered = model.loss(segment.inputs[rows], segment.targets[rows], remembered)
        return loss

    @torch.no_grad()
    def quality(self, model: nn.Module, *, whole: bool = False) -> float:
        assert isinstance(model, TransformerXL)
        before, model.memory_length = model.memory_length, self._eval_memory
        try:
            loss = self._evaluate(
                model, self.text.test[: self.test_limit] if whole else self.text.valid, whole=whole
            )
        finally:
            model.memory_length = before
        return math.exp(loss) if self.text.words is not None else loss / math.log(2)

    def _evaluate(self, model: TransformerXL, text: Tensor, *, whole: bool) -> float:
        """Mean −log p(target), each segment's memory given to the next."""
        parts = evaluation_segments(text, 1 if whole else self.batch, self.window)
        total, count, remembered = 0.0, 0, None
        for segment in parts if whole else islice(parts, self.held_out_segments):
            loss, remembered = model.loss(segment.inputs, segment.targets, remembered)
            total += float(loss) * segment.num_targets
            count += segment.num_targets
        return total / count

    def state_dict(self) -> dict[str, Any]:
        mine = self._remembered  # (depth, streams, memory, width), of the streams of this rank
        if mine is None or self.ranks is None:
            return {"remembered": mine}
        return {"remembered": torch.cat(self.ranks.gather(mine), dim=1)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        whole: Tensor | None = state["remembered"]
        if whole is not None:
            depth, batch, _, width = self.example()[1].shape
            if not isinstance(whole, Tensor) or whole.ndim != 4 or not whole.is_floating_point():
                raise ValueError("`remembered` must be a tensor of four dimensions")
            if (whole.shape[0], whole.shape[1], whole.shape[3]) != (depth, batch, width):
                raise ValueError(
                    f"`remembered` must have shape ({depth}, {batch}, …, {width}), got {tuple(whole.shape)}"
                )
        if whole is not None and self.ranks is not None:
            whole = whole[:, self.share.of(self.batch)].contiguous()
        self._remembered = whole
