"""enwik8: the first 10⁸ bytes of the English Wikipedia of 3 March 2006, split 90 / 5 / 5."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from topkast.data.datasets import DATA_SETS, Packed, find_dataset, locate

SIZE = 100_000_000
SHA1 = "57b8363b814821dc9d47aa4d41f58733519076b2"
_START = b"<mediawiki "
_SHARES = (90, 5)  # of 100; the rest is for testing
# Every byte value that occurs, counted on the file: tab, line feed, printable ASCII, and of the others
# those that UTF-8 uses here. 205 in all, and all of them occur in the first 90 %; without the line feed they
# are the 204 that is often quoted.
_ABSENT_HIGH = {192, 193, 221, 223, 238, *range(241, 256)}
SYMBOLS = (9, 10, *range(32, 127), *(byte for byte in range(128, 256) if byte not in _ABSENT_HIGH))


@dataclass(frozen=True)
class Enwik8:
    """The three parts, as ids.

    Attributes:
        train: The first 90 %, 1-D uint8.
        valid: The next 5 %.
        test: The last 5 %.
        symbols: The byte that an id stands for: ``symbols[train.long()]`` is the text.
    """

    train: Tensor
    valid: Tensor
    test: Tensor
    symbols: Tensor

    @property
    def num_symbols(self) -> int:
        """How many ids there are: 256, or 205."""
        return len(self.symbols)


def read_enwik8(path: Path | str | None = None, *, limit: int | None = None, compact: bool = False) -> Enwik8:
    """The text as bytes. A plain file is mapped, not read; a packed one is unpacked into memory (100 MB).

    Args:
        path: The file, plain or as .zip, .gz, .xz or .bz2, or its folder; see `find_dataset` for None.
        limit: Use only so many bytes from the start, split in the same proportion.
        compact: Number the 205 byte values that occur from 0 on, by rising value, whatever `limit` is; makes
            a copy of the text. Otherwise the id is the byte.

    Raises:
        FileNotFoundError: There is none; the message says where to get it.
        ValueError: Not enwik8: damaged, cut, altered, or another text.
    """
    if limit is not None and not 20 <= limit <= SIZE:
        raise ValueError(f"`limit` must be between 20 and {SIZE:,}, got {limit}")
    file = _file(find_dataset("enwik8", path))
    text = _mapped(file.path) if file.is_plain else _unpacked(file, limit)
    _check(file, text, limit)
    text = text[:limit]
    symbols = torch.arange(256, dtype=torch.uint8)
    if compact:
        text, symbols = _renumber(file, text), torch.tensor(SYMBOLS, dtype=torch.uint8)
    ends = [len(text) * _SHARES[0] // 100, len(text) * sum(_SHARES) // 100]
    return Enwik8(text[: ends[0]], text[ends[0] : ends[1]], text[ends[1] :], symbols)


def _file(place: Path) -> Packed:
    if not place.is_dir() and place.suffix != ".zip":
        return Packed(place)
    found = locate(place, ["enwik8"])
    if found is None and (place / "enwik8.zip").is_file():
        found = locate(place / "enwik8.zip", ["enwik8"])
    if found is None:
        raise FileNotFoundError(f"{place} has no enwik8; it can be had from {DATA_SETS['enwik8'].origin}")
    return found


def _mapped(path: Path) -> Tensor:
    if path.stat().st_size == 0:  # which cannot be mapped
        return torch.empty(0, dtype=torch.uint8)
    # "c": private to us, so that torch may take it for writable without a file being written.
    return torch.from_numpy(np.memmap(path, np.uint8, mode="c"))


def _unpacked(file: Packed, limit: int | None) -> Tensor:
    # One byte more than there may be shows that there are more; a prefix ends the unpacking early.
    content = file.read(SIZE + 1 if limit is None else limit)
    return torch.frombuffer(content, dtype=torch.uint8) if content else torch.empty(0, dtype=torch.uint8)


def _check(file: Packed, text: Tensor, limit: int | None) -> None:
    """The whole is checked by its digest, a prefix by how it starts."""
    origin = f"get it again from {DATA_SETS['enwik8'].origin}"
    if limit is None and len(text) != SIZE:
        found = f"{len(text):,}" if len(text) < SIZE or file.is_plain else "more"
        raise ValueError(
            f"{file} must have {SIZE:,} bytes, got {found}: {origin}, or give `limit` to use a prefix"
        )
    if limit is not None and len(text) < limit:
        raise ValueError(f"{file} must have at least `limit` ({limit:,}) bytes, got {len(text):,}: {origin}")
    if bytes(text[: len(_START)].numpy()) != _START:
        raise ValueError(f"{file} is not enwik8: it does not start with {_START.decode()!r}")
    if len(text) == SIZE and limit in (None, SIZE):
        found = hashlib.sha1(text.numpy().data, usedforsecurity=False).hexdigest()
        if found != SHA1:
            raise ValueError(f"{file} is damaged: its SHA-1 must be {SHA1}, got {found}; {origin}")


def _renumber(file: Packed, text: Tensor) -> Tensor:
    table = np.full(256, 255, np.uint8)
    table[list(SYMBOLS)] = np.arange(len(SYMBOLS), dtype=np.uint8)
    ids = np.take(table, text.numpy())
    if len(ids) and ids.max() == 255:
        where = int(ids.argmax())
        raise ValueError(f"{file} has byte {int(text[where])} at {where:,}, which does not occur in enwik8")
    return torch.from_numpy(ids)
