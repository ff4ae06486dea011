from __future__ import annotations

import gzip
import sys
import sysconfig
from pathlib import Path

import pytest
import torch

from topkast.data.images import digits, read_idx, read_images
from topkast.data.plain_text import stdlib_text


def test_stdlib_text_is_real_text_with_other_files_held_out() -> None:
    train, held_out = stdlib_text(limit=200_000)
    assert (len(train), len(held_out)) == (200_000, 20_000)
    assert train.dtype == torch.uint8
    text = bytes(held_out.numpy())
    assert b"def " in text
    assert text[:200] not in bytes(train.numpy())
    again, _ = stdlib_text(limit=200_000)
    assert torch.equal(train, again)


def test_a_python_without_sources_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sysconfig, "get_paths", lambda: {"stdlib": str(tmp_path)})
    with pytest.raises(
        FileNotFoundError, match="no standard library sources in .*`topkast train images` needs none"
    ):
        stdlib_text()


def test_digits_are_split_without_overlap() -> None:
    (x, y), (x_test, y_test) = digits()
    assert (len(x), len(x_test)) == (1438, 359)
    assert x.max() == 1.0
    assert set(y.tolist()) == set(y_test.tolist()) == set(range(10))


def test_missing_scikit_learn_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    with pytest.raises(
        ImportError, match=r"the digits come with scikit-learn, .*pip install 'topkast\[images\]'"
    ):
        digits()


def idx(shape: tuple[int, ...], body: bytes, kind: int = 8) -> bytes:
    return bytes([0, 0, kind, len(shape)]) + b"".join(n.to_bytes(4, "big") for n in shape) + body


def test_idx_files_plain_and_gzipped(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(idx((2, 3), bytes(range(6))))
    (tmp_path / "a.gz").write_bytes(gzip.compress(idx((2, 3), bytes(range(6)))))
    for name in ("a", "a.gz"):
        assert read_idx(tmp_path / name).tolist() == [[0, 1, 2], [3, 4, 5]]


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (b"", "is not an idx file"),
        (b"PNG\x00\x00", "is not an idx file"),
        (idx((2,), b"\0" * 8, kind=13), "is not an idx file of unsigned bytes"),
        (idx((2, 3), b"")[:9], "ends within its header"),
        (idx((2, 3), b"12345"), r"must hold \(2, 3\) bytes after its header, got 5"),
        (idx((2, 3), b"1234567"), r"must hold \(2, 3\) bytes after its header, got 7"),
        (idx((2**31, 2**31, 4), b"1"), r"must hold .* bytes after its header, got 1"),
    ],
)
def test_damaged_idx_files_are_named(raw: bytes, message: str, tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(raw)
    with pytest.raises(ValueError, match=message):
        read_idx(tmp_path / "x")


def test_a_cut_gzipped_idx_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.gz").write_bytes(gzip.compress(idx((2, 3), bytes(range(6))))[:-9])
    with pytest.raises(ValueError, match=r"a\.gz is damaged: .*; get the file again"):
        read_idx(tmp_path / "a.gz")


def test_a_folder_without_its_files_is_named(tmp_path: Path) -> None:
    with pytest.raises(
        FileNotFoundError, match="has neither train-images-idx3-ubyte.gz nor train-images-idx3-ubyte"
    ):
        read_images(tmp_path, "train")


def test_images_and_labels_must_agree(tmp_path: Path) -> None:
    (tmp_path / "train-images-idx3-ubyte").write_bytes(idx((2, 1, 1), b"ab"))
    (tmp_path / "train-labels-idx1-ubyte").write_bytes(idx((3,), b"abc"))
    with pytest.raises(ValueError, match="2 train images but 3 labels"):
        read_images(tmp_path, "train")


def test_fashion_mnist_is_read_whole(data_folder: Path) -> None:
    images, labels = read_images(data_folder / "fashion-mnist", "t10k")
    assert images.shape == (10_000, 28, 28)
    assert torch.bincount(labels).tolist() == [1000] * 10
