"""Packed files, whole and damaged, and where data sets are looked for."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from topkast.data.datasets import DATA_SETS, Packed, find_dataset, locate

TEXT = b"The quick brown fox jumps over the lazy dog. " * 200
PACK: dict[str, Callable[[bytes], bytes]] = {
    "": bytes,
    ".gz": gzip.compress,
    ".xz": lzma.compress,
    ".bz2": bz2.compress,
}


@pytest.mark.parametrize("suffix", PACK)
def test_every_form_is_read_and_no_more_than_asked(suffix: str, tmp_path: Path) -> None:
    (tmp_path / f"text{suffix}").write_bytes(PACK[suffix](TEXT))
    found = locate(tmp_path, ["missing", "text"])
    assert found is not None
    assert found.is_plain == (suffix == "")
    assert found.read(1 << 20) == TEXT
    assert found.read(100) == TEXT[:100]


@pytest.mark.parametrize("suffix", [".gz", ".xz", ".bz2"])
@pytest.mark.parametrize("cut", [0.5, 0.99])
def test_a_cut_file_is_named(suffix: str, cut: float, tmp_path: Path) -> None:
    packed = PACK[suffix](TEXT)
    path = tmp_path / f"text{suffix}"
    path.write_bytes(packed[: int(len(packed) * cut)])
    with pytest.raises(ValueError, match=rf"text\{suffix} is damaged: .*; get the file again"):
        Packed(path).read(1 << 20)


@pytest.mark.parametrize("suffix", [".gz", ".xz", ".bz2"])
def test_another_kind_of_file_is_named(suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"text{suffix}"
    path.write_bytes(TEXT)
    with pytest.raises(ValueError, match="is damaged"):
        Packed(path).read(10)


def test_a_member_of_a_zip_is_found_in_its_folders(tmp_path: Path) -> None:
    path = tmp_path / "all.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("folder/readme", b"no")
        archive.writestr("folder/text", TEXT)
    found = locate(path, ["text"])
    assert found is not None
    assert str(found).endswith("all.zip (folder/text)")
    assert found.read(1 << 20) == TEXT
    assert locate(path, ["other"]) is None


def test_damaged_zips_are_named(tmp_path: Path) -> None:
    path = tmp_path / "all.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("text", TEXT)
    whole = path.read_bytes()
    path.write_bytes(whole[:-30])
    with pytest.raises(ValueError, match=r"all\.zip is damaged"):
        locate(path, ["text"])
    path.write_bytes(whole.replace(b"lazy", b"busy", 1))
    with pytest.raises(ValueError, match=r"all\.zip \(text\) is damaged: Bad CRC-32"):
        Packed(path, "text").read(1 << 20)
    encrypted = bytearray(whole)
    encrypted[whole.index(b"PK\1\2") + 8] |= 1
    encrypted[6] |= 1
    path.write_bytes(encrypted)
    with pytest.raises(ValueError, match="is damaged: .*encrypted"):
        Packed(path, "text").read(1 << 20)


def _zip(content: bytes) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("folder/text", content)
    return file.getvalue()


@given(
    suffix=st.sampled_from([".gz", ".xz", ".bz2", ".zip"]),
    changes=st.lists(
        st.tuples(st.floats(0, 1, exclude_max=True), st.binary(max_size=4)), min_size=1, max_size=4
    ),
)
def test_whatever_is_changed_the_file_is_read_or_named(
    suffix: str, changes: list[tuple[float, bytes]]
) -> None:
    content = bytearray((PACK | {".zip": _zip})[suffix](TEXT))
    for where, what in changes:
        at = int(where * len(content))
        content[at : at + len(what)] = what
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"text{suffix}"
        path.write_bytes(content)
        try:
            found = locate(path, ["text"]) if suffix == ".zip" else Packed(path)
            assert found is None or len(found.read(1 << 16)) <= 1 << 16
        except ValueError as error:
            assert str(path) in str(error)


def test_a_given_path_comes_before_the_variable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOPKAST_DATA", str(tmp_path))
    (tmp_path / "enwik8.zip").write_bytes(b"")
    assert find_dataset("enwik8") == tmp_path / "enwik8.zip"
    (tmp_path / "enwik8").mkdir()
    assert find_dataset("enwik8") == tmp_path / "enwik8"
    assert find_dataset("enwik8", tmp_path) == tmp_path


@pytest.mark.parametrize("name", DATA_SETS)
def test_what_is_missing_can_be_had_somewhere(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TOPKAST_DATA", raising=False)
    with pytest.raises(
        FileNotFoundError, match="no path was given .* TOPKAST_DATA is not set .* can be had from"
    ):
        find_dataset(name)
    monkeypatch.setenv("TOPKAST_DATA", str(tmp_path))
    with pytest.raises(FileNotFoundError, match=f"which has none of .*; {name} can be had from"):
        find_dataset(name)
    with pytest.raises(FileNotFoundError, match=f"nowhere does not exist; {name} can be had from"):
        find_dataset(name, tmp_path / "nowhere")


def test_an_unknown_set_is_refused() -> None:
    with pytest.raises(ValueError, match="`name` must be one of enwik8, .*, got 'mnist'"):
        find_dataset("mnist")
