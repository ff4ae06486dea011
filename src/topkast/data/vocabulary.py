"""Words and their numbers, and a folder that keeps a numbered text for the next time."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from topkast.store.files import replaced

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


# ---- kept for the next time: JSON and .npy, checked by digests, never pickled --------------------------

INDEX = "topkast-words.json"
_FORMAT = 1


class WordCache:
    """What was numbered from certain files, and is valid for these only.

    Args:
        folder: Where it is kept; made when something is.
        sources: The SHA-256 of each file that the text comes from, by part.

    Raises:
        ValueError: `folder` is a file.
    """

    def __init__(self, folder: Path, sources: Mapping[str, str]) -> None:
        if folder.exists() and not folder.is_dir():
            raise ValueError(f"`cache` must be a folder, but {folder} is a file")
        self.folder = folder
        self.sources = dict(sources)

    def load(self) -> tuple[Vocabulary, dict[str, Tensor]] | None:
        """The vocabulary and the parts, mapped; None if these sources have none, or a damaged one."""
        try:
            index = json.loads((self.folder / INDEX).read_text(encoding="utf-8"))
            if index["format"] != _FORMAT or index["sources"] != self.sources:
                return None
            vocabulary = Vocabulary(index["words"])
            if _digest_of_words(vocabulary) != index["words_sha256"]:
                return None
            return vocabulary, {name: self._part(name, index["ids_sha256"][name]) for name in self.sources}
        except (KeyError, TypeError, ValueError, OSError):  # whatever is not as it was written
            return None

    def write_part(self, name: str, count: int, ids: Iterable[np.ndarray]) -> str:
        """Writes the ids of a part as they come, and returns their SHA-256."""
        self.folder.mkdir(parents=True, exist_ok=True)
        digest = hashlib.sha256()
        with replaced(self._file(name)) as file:
            header = {"descr": "<i4", "fortran_order": False, "shape": (count,)}
            np.lib.format.write_array_header_1_0(file, header)
            for some in ids:
                file.write(some.astype("<i4", copy=False).data)
                digest.update(some.data)
        return digest.hexdigest()

    def write_index(self, vocabulary: Vocabulary, digests: Mapping[str, str]) -> None:
        """Makes the parts valid; comes last, so that what was interrupted is not taken for whole."""
        index = {
            "format": _FORMAT,
            "sources": self.sources,
            "ids_sha256": dict(digests),
            "words_sha256": _digest_of_words(vocabulary),
            "words": vocabulary.words,
        }
        with replaced(self.folder / INDEX) as file:
            file.write(json.dumps(index, ensure_ascii=False).encode())

    def _file(self, name: str) -> Path:
        return self.folder / f"topkast-words-{name}.npy"

    def _part(self, name: str, digest: str) -> Tensor:
        # "c": private to us, so that torch may take it for writable without a file being written.
        array = np.load(self._file(name), mmap_mode="c", allow_pickle=False)
        if array.dtype != np.int32 or array.ndim != 1 or hashlib.sha256(array.data).hexdigest() != digest:
            raise ValueError(f"{self._file(name)} is damaged")
        return torch.from_numpy(array)


def _digest_of_words(vocabulary: Vocabulary) -> str:
    return hashlib.sha256("\n".join(vocabulary.words).encode()).hexdigest()
