"""From text to the numbers that a network takes, and back: bytes, or words of a vocabulary."""

from __future__ import annotations

import codecs
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator

from topkast.data.vocabulary import EOS, Vocabulary


class Symbols(ABC):
    """What the numbers of a text network mean."""

    @abstractmethod
    def encode(self, text: str) -> list[int]:
        """The numbers of a text."""

    @abstractmethod
    def pieces(self, symbols: Iterable[int]) -> Iterator[str]:
        """The text of numbers as they come, in pieces that can be shown at once."""

    def decode(self, symbols: Iterable[int]) -> str:
        """The text of numbers."""
        return "".join(self.pieces(symbols))


class Bytes(Symbols):
    """Each byte of UTF-8 is a number. Bytes that are no character are shown as "�"."""

    def encode(self, text: str) -> list[int]:
        return list(text.encode())

    def pieces(self, symbols: Iterable[int]) -> Iterator[str]:
        # A byte may be half a character: it is shown when that is whole, or found to be none.
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        for symbol in symbols:
            yield decoder.decode(bytes([int(symbol)]))
        yield decoder.decode(b"", final=True)


class Words(Symbols):
    """Each word is a number. Spaces stand between words, and a line ends with `<eos>`."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary

    def encode(self, text: str) -> list[int]:
        parts = self._vocabulary.encode(text.split("\n"))
        numbers = [number for part in parts for number in part.tolist()]
        return numbers[:-1]  # the last line goes on

    def pieces(self, symbols: Iterable[int]) -> Iterator[str]:
        space = ""
        for symbol in symbols:
            word = self._vocabulary.words[int(symbol)]
            yield "\n" if word == EOS else space + word
            space = "" if word == EOS else " "
