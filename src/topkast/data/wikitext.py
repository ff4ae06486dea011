"""WikiText-2 and WikiText-103, and any text of words in three files: as numbers of words."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from topkast.data.datasets import DATA_SETS, Packed, find_dataset, locate
from topkast.data.vocabulary import Vocabulary, WordCache, count_words

_PARTS = ("train", "valid", "test")
# The longest line of WikiText has some ten thousand bytes; one of this size is no line of words.
_LONGEST_LINE = 1 << 24


@dataclass(frozen=True)
class Edition:
    """What is known of a text: words with an `<eos>` for each line, different words, and digests.

    Attributes:
        counts: Words in train, valid and test.
        num_words: Different words in train, `<eos>` among them.
        sha256: By part, the bytes of the unpacked text and their digest.
    """

    counts: tuple[int, int, int]
    num_words: int
    sha256: dict[str, tuple[int, str]]


EDITIONS: dict[str, Edition] = {
    "wikitext-2": Edition(
        (2_088_628, 217_646, 245_569),
        33_278,
        {
            "train": (10_797_148, "9e9fa1ad55b1c2c95b08e37dd8e653f638fac2c6de904b79e813611eefbc985f"),
            "valid": (1_121_681, "f0737ed31fc1329026e95cb8b98e19c2a182c39c240ab909dc31abf2f8af58e8"),
            "test": (1_256_449, "d790b833ef8cf03a90db7bf1271b7520b83c45ce07ba3c1a9699df81e239eca0"),
        },
    ),
    "wikitext-103": Edition(
        (103_227_021, 217_646, 245_569),
        267_735,
        {
            "valid": (1_142_309, "9aee9f52d6e77de6c7751fc5e7c44287db3ec0eaf15477098acc6b93c1c4250b"),
            "test": (1_281_077, "56db52eb157b1ab5c89646eef70510c1eca6e12a3bfdb99f0d6b05b4eacb75b9"),
        },
    ),
}


@dataclass(frozen=True)
class Words:
    """The three parts as ids, 1-D int32, and what they mean."""

    train: Tensor
    valid: Tensor
    test: Tensor
    vocabulary: Vocabulary

    @property
    def num_symbols(self) -> int:
        """How many ids there are."""
        return len(self.vocabulary)


def read_wikitext(
    name: Literal["wikitext-2", "wikitext-103"],
    path: Path | str | None = None,
    *,
    cache: Path | str | None = None,
) -> Words:
    """One of the published texts, with its published numbers of words checked.

    Args:
        name: Which.
        path: Its folder or zip; see `find_dataset` for None.
        cache: As for `read_words`.

    Raises:
        FileNotFoundError: It is not there; the message says where to get it.
        ValueError: Damaged, cut, altered, or another text.
    """
    if name not in EDITIONS:
        raise ValueError(f"`name` must be one of {', '.join(EDITIONS)}, got {name!r}")
    place = find_dataset(name, path)
    words = _read(place, cache, EDITIONS[name], f"; {name} can be had from {DATA_SETS[name].origin}")
    found = (*(len(getattr(words, part)) for part in _PARTS), words.num_symbols)
    must = (*EDITIONS[name].counts, EDITIONS[name].num_words)
    for what, count, expected in zip((*_PARTS, "vocabulary"), found, must, strict=True):
        if count != expected:
            raise ValueError(
                f"{place} is not {name}: its {what} must have {expected:,} words, got {count:,}; get it "
                f"again from {DATA_SETS[name].origin}, or read it as any text with `read_words`"
            )
    return words


def read_words(path: Path | str, *, cache: Path | str | None = None) -> Words:
    """Any text of words that are apart by white space, in three files.

    Every line ends with an `<eos>`. The vocabulary is that of the training text: `<eos>` is 0, the others
    follow by falling count, equal counts in the order in which they first occur. Words of the other parts
    that it has not are `<unk>`.

    Args:
        path: A folder or zip with ``wiki.train.tokens`` or ``train.txt``, and likewise valid and test, in
            a folder also as .gz, .xz or .bz2.
        cache: A folder for the numbered text; what it has is mapped and not read, as long as the files are
            the same. Otherwise it is written; its files start with ``topkast-words``.

    Raises:
        FileNotFoundError: No such folder, or a part is missing.
        ValueError: Damaged, not UTF-8, empty, or a word that is not known where there is no `<unk>`.
    """
    if not Path(path).exists():
        raise FileNotFoundError(f"{path} does not exist")
    return _read(Path(path), cache, None, "")


def _read(place: Path, cache: Path | str | None, edition: Edition | None, origin: str) -> Words:
    files = {part: _file(place, part, origin) for part in _PARTS}
    if cache is None:
        vocabulary, ids = _number(files, None, edition)
        return Words(**ids, vocabulary=vocabulary)
    kept = WordCache(Path(cache), {part: file.stored_sha256() for part, file in files.items()})
    vocabulary, ids = kept.load() or _number(files, kept, edition)
    return Words(**ids, vocabulary=vocabulary)


def _file(place: Path, part: str, origin: str) -> Packed:
    names = [f"wiki.{part}.tokens", f"{part}.txt"]
    found = locate(place, names)
    if found is None:
        raise FileNotFoundError(f"{place} has neither {names[0]} nor {names[1]}, packed or not{origin}")
    return found


def _number(
    files: dict[str, Packed], cache: WordCache | None, edition: Edition | None
) -> tuple[Vocabulary, dict[str, Tensor]]:
    """Numbers all parts; with a cache they go there piece by piece and come back mapped."""
    vocabulary, count = count_words(_lines(files["train"], "train", edition))
    digests: dict[str, str] = {}
    parts: dict[str, Tensor] = {}
    for part, file in files.items():
        ids: Iterable[np.ndarray] = vocabulary.encode(_lines(file, part, edition))
        if part != "train":
            ids = list(ids)
            count = sum(map(len, ids))
        if cache is None:
            parts[part] = _filled(count, ids)
        else:
            digests[part] = cache.write_part(part, count, ids)
    if cache is None:
        return vocabulary, parts
    cache.write_index(vocabulary, digests)
    loaded = cache.load()
    if loaded is None:
        raise ValueError(
            f"{cache.folder} does not give back what was written there; is another process writing?"
        )
    return loaded


def _filled(count: int, ids: Iterable[np.ndarray]) -> Tensor:
    whole, done = np.empty(count, np.int32), 0
    for some in ids:
        whole[done : done + len(some)] = some
        done += len(some)
    return torch.from_numpy(whole)


def _lines(file: Packed, part: str, edition: Edition | None) -> Iterator[str]:
    """The lines of a part; at their end the text is known to be whole."""
    digest, size, number = hashlib.sha256(), 0, 0
    with file.open() as stream:
        while raw := stream.readline(_LONGEST_LINE):
            number += 1
            size += len(raw)
            digest.update(raw)
            if len(raw) == _LONGEST_LINE:
                raise ValueError(
                    f"{file} has a line of more than {_LONGEST_LINE:,} bytes: it is no text of words"
                )
            try:
                yield raw.decode()
            except UnicodeDecodeError as error:
                raise ValueError(f"{file} must be UTF-8, but line {number} is not: {error.reason}") from None
    if number == 0:
        raise ValueError(f"{file} is empty")
    expected = edition.sha256.get(part) if edition else None
    # Another size is another edition of the text, whose words are counted; the same size is a damaged copy.
    if expected and size == expected[0] and digest.hexdigest() != expected[1]:
        raise ValueError(
            f"{file} is damaged: the SHA-256 of its {size:,} bytes must be {expected[1]}, "
            f"got {digest.hexdigest()}; get the file again"
        )
