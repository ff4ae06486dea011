"""Language modelling: texts by name, windows for a decoder, segments for a Transformer-XL."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from topkast.data.enwik8 import SIZE, read_enwik8
from topkast.data.plain_text import check_length, read_text, stdlib_text
from topkast.data.segments import Segments, evaluation_segments
from topkast.data.wikitext import EDITIONS, read_wikitext
from topkast.models.network import Network
from topkast.models.simple import EMBEDDING_STD
from topkast.models.transformer_xl import INITIAL_STD, TransformerXL
from topkast.train.task import Task, device_of


@dataclass
class TextTask(Task):
    """Byte-level language modelling, by default on the standard library's own sources.

    Quality in training is that of some windows of the held-out text; at the end it is that of all windows of
    the test text, where there is one. With `is_unread` a published text is not read: enough for a forecast.
    """

    dataset: str | None = None
    data: Path | None = None
    limit: int | None = None
    width: int = 256
    depth: int = 2
    heads: int = 4
    window: int = 128
    active_share: float = 1.0
    embedding_std: float = EMBEDDING_STD
    batch: int = 16
    is_unread: bool = False

    quality_name = "bits per byte"
    higher_is_better = False
    unit = "bytes"
    steps = 400
    lr = 2e-3
    held_out_windows = 128

    def __post_init__(self) -> None:
        if self.width % self.heads:
            raise ValueError(f"--heads must divide --width ({self.width}), got {self.heads}")
        if self.is_unread and self.dataset is not None:
            self.text = unread_text(self.dataset)
        else:
            self.text = named_text(self.dataset, self.data, self.limit)
        if self.text.words is not None:
            raise ValueError(f"a decoder learns bytes: {self.dataset} has words, for a transformer-xl")
        self.units_per_step = self.batch * self.window
        self.title = (
            f"bytes of {self.text.where}: {len(self.text.train):,} for training, "
            f"{len(self.text.valid):,} others held out"
        )
        if self.text.test is not self.text.valid:
            self.title += f", {len(self.text.test):,} for testing"
            self.whole_name = "over all of the test text"
        if not self.is_unread:
            parts = {"training": self.text.train, "held-out": self.text.valid, "test": self.text.test}
            check_length(list(parts.items()), self.window, self.text.where)

    def sizes(self) -> dict[str, Any]:
        names = ("width", "depth", "heads", "window", "active_share", "embedding_std", "batch")
        return {name: getattr(self, name) for name in names}

    def network(self) -> Network:
        sizes = {"width": self.width, "depth": self.depth, "num_heads": self.heads, "window": self.window}
        usual = {"active_share": 1.0, "embedding_std": EMBEDDING_STD}
        others = {name: getattr(self, name) for name, value in usual.items() if getattr(self, name) != value}
        return Network("decoder", {"num_symbols": 256, **sizes, **others})

    def inputs(self) -> dict[str, Any]:
        return {"symbols": "bytes", "window": self.window}

    def example(self) -> Tensor:
        return torch.zeros(self.batch, self.window, dtype=torch.int64)

    def loss(self, model: nn.Module, step: int, generator: torch.Generator) -> Tensor:
        train = self.text.train
        starts = torch.randint(len(train) - self.window, (self.batch,), generator=generator)
        return self._loss(model, train, starts[self.share.of(self.batch)])

    @torch.no_grad()
    def quality(self, model: nn.Module, *, whole: bool = False) -> float:
        text = self.text.test if whole else self.text.valid
        last = len(text) - self.window - 1
        if whole:  # windows one after another; what is left at the end is less than one
            starts = torch.arange(0, last + 1, self.window)
        else:
            starts = torch.linspace(0, last, self.held_out_windows).long()
        parts = starts.split(self.batch)
        losses = [self._loss(model, text, part).double() * len(part) for part in parts]
        return float(torch.stack(losses).sum()) / len(starts) / math.log(2)

    def _loss(self, model: nn.Module, text: Tensor, starts: Tensor) -> Tensor:
        windows = text[starts[:, None] + torch.arange(self.window + 1)].long().to(device_of(model))
        logits = model(windows[:, :-1])
        return F.cross_entropy(logits.flatten(0, 1).float(), windows[:, 1:].flatten())


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
    initial_std: float = INITIAL_STD
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
            self.text = unread_text(self.dataset)
        else:
            self.text = named_text(self.dataset, self.data, self.limit)
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
        own = {} if self.initial_std == INITIAL_STD else {"initial_std": self.initial_std}
        return {**sizes, **own, "inner": self._inner, "eval_memory": self._eval_memory}

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
        if self.initial_std != INITIAL_STD:
            arguments["initial_std"] = self.initial_std
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
        segment, rows, device = self.segments.at(step), self.share.of(self.batch), device_of(model)
        remembered = None if segment.is_first or self._remembered is None else self._remembered.to(device)
        inputs, targets = segment.inputs[rows].to(device), segment.targets[rows].to(device)
        loss, self._remembered = model.loss(inputs, targets, remembered)
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
        total, count, remembered, device = 0.0, 0, None, device_of(model)
        for segment in parts if whole else islice(parts, self.held_out_segments):
            loss, remembered = model.loss(segment.inputs.to(device), segment.targets.to(device), remembered)
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


NUM_WORDS = {name: edition.num_words for name, edition in EDITIONS.items()}


@dataclass(frozen=True)
class Text:
    """A text.

    Attributes:
        where: For people.
        train: 1-D, of integers.
        valid: Held out, looked at in training.
        test: Held out, looked at in the end. The same as `valid` where there is no third part.
        num_symbols: How many there are.
        words: What the numbers mean; None for bytes.
    """

    where: str
    train: Tensor
    valid: Tensor
    test: Tensor
    num_symbols: int = 256
    words: tuple[str, ...] | None = None


def unread_text(dataset: str) -> Text:
    """What is known of a published text without having it, for a forecast."""
    nothing = torch.empty(0, dtype=torch.int64)
    if dataset == "enwik8":
        return Text(f"{dataset}, which is not here", nothing, nothing, nothing)
    return Text(f"{dataset}, which is not here", nothing, nothing, nothing, NUM_WORDS[dataset], ())


def named_text(dataset: str | None, path: Path | None, limit: int | None) -> Text:
    """A data set by name, or a file, a folder, or what comes with Python.

    Args:
        dataset: A text of `topkast.data.datasets`, or None for whatever is at `path`.
        path: Where it is; for a data set, None looks where `topkast.data.datasets` says.
        limit: Bytes, or words, of training text to use.

    Raises:
        ValueError: The text is damaged or not what it should be.
        FileNotFoundError: It is not there; the message says where to get it.
    """
    if dataset == "enwik8":
        # The first `limit` bytes are nine tenths of a prefix that is split like the whole.
        enwik8 = read_enwik8(path, limit=None if limit is None else min(SIZE, -(-limit * 10 // 9)))
        return Text("enwik8", enwik8.train, enwik8.valid, enwik8.test)
    if dataset is not None:
        words = read_wikitext(dataset, path)  # pyright: ignore[reportArgumentType]
        names = tuple(words.vocabulary.words)
        return Text(dataset, words.train[:limit], words.valid, words.test, words.num_symbols, names)
    if path is None:
        train, held_out = stdlib_text() if limit is None else stdlib_text(limit)
        return Text("the standard library's sources", train, held_out, held_out)
    train, held_out = read_text(path, limit)
    return Text(str(path), train, held_out, held_out)
