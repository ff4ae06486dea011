"""enwik8: the split, the symbols, and what is refused."""

from __future__ import annotations

import gzip
import lzma
import zipfile
from pathlib import Path

import pytest
import torch

from topkast.data import enwik8
from topkast.data.enwik8 import SYMBOLS, read_enwik8

PREFIX = b"<mediawiki xmlns='...'>\n" + bytes(range(32, 127)) * 20 + "\tÄ漢".encode()


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> bytes:
    """A whole enwik8 of 1,000 bytes, with its own digest."""
    import hashlib

    monkeypatch.setattr(enwik8, "SIZE", 1000)
    monkeypatch.setattr(enwik8, "SHA1", hashlib.sha1(PREFIX[:1000]).hexdigest())
    return PREFIX[:1000]


def _write(folder: Path, form: str, content: bytes) -> Path:
    path = folder / f"enwik8{form}"
    if form == ".zip":
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("enwik8", content)
    else:
        pack = {"": bytes, ".gz": gzip.compress, ".xz": lzma.compress}[form]
        path.write_bytes(pack(content))
    return path


@pytest.mark.parametrize("form", ["", ".zip", ".gz", ".xz"])
def test_every_form_gives_the_same_split(form: str, small: bytes, tmp_path: Path) -> None:
    path = _write(tmp_path, form, small)
    for place in (path, tmp_path):
        text = read_enwik8(place)
        parts = [bytes(part.numpy()) for part in (text.train, text.valid, text.test)]
        assert b"".join(parts) == small
        assert [len(part) for part in parts] == [900, 50, 50]
        assert text.num_symbols == 256
    assert len(read_enwik8(path, limit=200).train) == 180
    assert sorted(p.name for p in tmp_path.iterdir()) == [path.name]  # nothing is written


def test_a_plain_file_is_mapped_and_never_written(small: bytes, tmp_path: Path) -> None:
    path = _write(tmp_path, "", small)
    path.chmod(0o444)
    text = read_enwik8(path)
    text.train[0] = 0
    assert path.read_bytes() == small


def test_symbols_are_the_same_whatever_the_prefix(tmp_path: Path) -> None:
    path = _write(tmp_path, "", PREFIX)
    text = read_enwik8(path, limit=len(PREFIX), compact=True)
    assert text.num_symbols == 205 == len(SYMBOLS)
    whole = torch.cat([text.train, text.valid, text.test])
    assert bytes(text.symbols[whole.long()].numpy()) == PREFIX
    short = read_enwik8(path, limit=100, compact=True)
    assert torch.equal(short.train, text.train[:90])


@pytest.mark.parametrize("form", ["", ".xz"])
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda text: text[:-1],
            r"must have 1,000 bytes, got 999: get it again from mattmahoney\.net.*`limit`",
        ),
        (lambda text: text + b"x", r"must have 1,000 bytes, got (1,001|more)"),
        (lambda text: b"", "must have 1,000 bytes, got 0"),
        (lambda text: b"x" + text[1:], "is not enwik8: it does not start with '<mediawiki '"),
        (lambda text: text[:-1] + b"\t", "is damaged: its SHA-1 must be .*, got .*; get it again"),
    ],
)
def test_altered_files_are_refused(form: str, change, message: str, small: bytes, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=message):
        read_enwik8(_write(tmp_path, form, change(small)))


def test_limits_and_strange_bytes_are_named(tmp_path: Path) -> None:
    path = _write(tmp_path, "", PREFIX)
    with pytest.raises(ValueError, match="`limit` must be between 20 and 100,000,000, got 3"):
        read_enwik8(path, limit=3)
    with pytest.raises(ValueError, match=r"must have at least `limit` \(10,000\) bytes, got 1,930"):
        read_enwik8(path, limit=10_000)
    path.write_bytes(PREFIX + b"\xff")
    with pytest.raises(ValueError, match="has byte 255 at 1,930, which does not occur in enwik8"):
        read_enwik8(path, limit=len(PREFIX) + 1, compact=True)


def test_a_folder_without_it_says_where_to_get_it(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"has no enwik8; it can be had from mattmahoney\.net"):
        read_enwik8(tmp_path)


def test_the_real_text(data_folder: Path) -> None:
    text = read_enwik8(data_folder / "enwik8", limit=2_000_000, compact=True)
    assert (len(text.train), len(text.valid), len(text.test)) == (1_800_000, 100_000, 100_000)
    assert b"Anarchism" in bytes(text.symbols[text.train[:10_000].long()].numpy())


@pytest.mark.slow
def test_the_whole_real_text(data_folder: Path) -> None:
    text = read_enwik8(data_folder / "enwik8")
    assert (len(text.train), len(text.valid), len(text.test)) == (90_000_000, 5_000_000, 5_000_000)
    assert tuple(torch.bincount(text.train).nonzero().flatten().tolist()) == SYMBOLS
