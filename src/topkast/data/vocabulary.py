"""Words and their numbers: by falling count in the training text, as adaptive softmax wants them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property

import numpy as np

EOS = "<eos>"
UNKNOWN = "<unk>"
# Lines that are numbered at a time; only so much of a text is ever in memory as words.
_LINES = 4096


class Vocabulary:
    """Which word has which number.

    `<eos>` is 0; the others follow by falling count, equal counts in the order in which they first occur.

    Args:
        words: By number; all different, `<eos>` first.
    """

    def __init__(self, words: Sequence[str]) -> None:
        self.words = tuple(words)
        if self.words[:1] != (EOS,):
            raise ValueError(f"the first word must be {EOS}, got {self.words[:1]}")
        if len(self._numbers) != len(self.words):
            raise ValueError(f"{len(self.words) - len(self._numbers)} words occur twice in the vocabulary")

    def __len__(self) -> int:
        return len(self.words)

    @cached_property
    def _numbers(self) -> dict[str, int]:
        return {word: number for number, word in enumerate(self.words)}

    def encode(self, lines: Iterable[str]) -> Iterator[np.ndarray]:
        """The numbers of lines, an `<eos>` after each, as int32 arrays of some lines each.

        A word that is not known is `<unk>`.

        Raises:
            ValueError: A word that is not known, and no `<unk>` in the vocabulary.
        """
        numbers, unknown = self._numbers, self._numbers.get(UNKNOWN, -1)
        for part in in_parts(lines):
            words = [word for line in part for word in (*line.split(), EOS)]
            ids = np.fromiter((numbers.get(word, unknown) for word in words), np.int32, len(words))
            if unknown < 0 and len(ids) and ids.min() < 0:
                raise ValueError(
                    f"the word {words[int(ids.argmin())]!r} is not in the vocabulary, which has no {UNKNOWN}"
                )
            yield ids

    def decode(self, ids: Iterable[int]) -> str:
        """The text of ids, words apart by spaces, `<eos>` as the end of a line."""
        return " ".join(self.words[i] for i in ids).replace(f" {EOS}", "\n").replace(EOS, "\n")


def count_words(lines: Iterable[str]) -> tuple[Vocabulary, int]:
    """The vocabulary of a text, and how many words it has with an `<eos>` for each line."""
    counts: Counter[str] = Counter()
    num_lines = 0
    for part in in_parts(lines):
        num_lines += len(part)
        for line in part:
            counts.update(line.split())
    # The text may have an <eos> of its own; it is the same word.
    words = [EOS, *(word for word, _ in counts.most_common() if word != EOS)]
    return Vocabulary(words), counts.total() + num_lines


def in_parts(lines: Iterable[str]) -> Iterator[list[str]]:
    """Lists of some thousand lines."""
    part: list[str] = []
    for line in lines:
        part.append(line)
        if len(part) == _LINES:
            yield part
            part = []
    if part:
        yield part
