"""Texts by name, as numbers, in three parts: what is learned, what is watched, and what is published."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from topkast.data.enwik8 import SIZE, read_enwik8
from topkast.data.plain_text import read_text, stdlib_text
from topkast.data.wikitext import EDITIONS, read_wikitext

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


def unread(dataset: str) -> Text:
    """What is known of a published text without having it, for a forecast."""
    nothing = torch.empty(0, dtype=torch.int64)
    if dataset == "enwik8":
        return Text(f"{dataset}, which is not here", nothing, nothing, nothing)
    return Text(f"{dataset}, which is not here", nothing, nothing, nothing, NUM_WORDS[dataset], ())


def read(dataset: str | None, path: Path | None, limit: int | None) -> Text:
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
