"""Text and images from files: what is read, what is held out, what is refused."""

from __future__ import annotations

import gzip
import lzma
from pathlib import Path

import numpy as np
import pytest
import torch

from topkast.data.images import read_byte_folder
from topkast.data.plain_text import check_length, read_text

SENTENCE = b"The quick brown fox jumps over the lazy dog. "


def test_the_last_tenth_of_a_file_is_held_out(tmp_path: Path) -> None:
    text = SENTENCE * 100
    path = tmp_path / "text.txt"
    path.write_bytes(text)
    train, held_out = read_text(path)
    assert bytes(train.numpy()) + bytes(held_out.numpy()) == text
    assert len(held_out) == 450


@pytest.mark.parametrize(("suffix", "pack"), [(".gz", gzip.compress), (".xz", lzma.compress)])
def test_packed_files_are_unpacked(tmp_path: Path, suffix: str, pack: object) -> None:
    path = tmp_path / f"text{suffix}"
    path.write_bytes(pack(SENTENCE * 100))  # pyright: ignore[reportCallIssue]
    train, held_out = read_text(path, limit=900)
    assert bytes(train.numpy()) == (SENTENCE * 100)[:900]
    assert len(held_out) == 100
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(ValueError, match=r"text\.\w+ is damaged"):
        read_text(path)


def test_files_of_a_folder_are_held_out_whole(tmp_path: Path) -> None:
    for i in range(60):
        (tmp_path / f"{i}.txt").write_bytes(b"%02d" % i * 10)
    (tmp_path / "picture.bin").write_bytes(bytes(100))
    (tmp_path / ".hidden").write_bytes(SENTENCE)
    train, held_out = (bytes(part.numpy()) for part in read_text(tmp_path))
    assert len(train) + len(held_out) == 60 * 20
    assert 0 < len(held_out) < 300
    assert not {train[i : i + 20] for i in range(0, len(train), 20)} & {
        held_out[i : i + 20] for i in range(0, len(held_out), 20)
    }


@pytest.mark.parametrize(
    ("content", "error", "message"),
    [
        (b"", ValueError, "is empty"),
        (b"text\0text", ValueError, "is not text: it has zero bytes"),
        (None, FileNotFoundError, "does not exist"),
    ],
)
def test_text_that_cannot_be_is_refused(
    tmp_path: Path, content: bytes | None, error: type[Exception], message: str
) -> None:
    path = tmp_path / "text.txt"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(error, match=message):
        read_text(path)


def test_an_empty_folder_has_no_text(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="has no text files"):
        read_text(tmp_path)


def test_text_shorter_than_a_window_is_refused() -> None:
    with pytest.raises(
        ValueError, match=r"notes.txt: the held-out text has 9 bytes, fewer than one window of 16"
    ):
        check_length([("training", torch.zeros(90)), ("held-out", torch.zeros(9))], 16, "notes.txt")


def _picture(path: Path, shade: int, size: tuple[int, int] = (40, 30)) -> None:
    image = pytest.importorskip("PIL.Image")
    path.parent.mkdir(parents=True, exist_ok=True)
    image.new("RGB", size, (shade, 0, 255 - shade)).save(path)


def test_a_folder_for_each_class(tmp_path: Path) -> None:
    for label, name in enumerate(("cat", "dog", "emu")):
        for i in range(20):
            _picture(tmp_path / name / f"{i}.png", 100 * label + i)
    images = read_byte_folder(tmp_path, side=8)
    assert images.classes == ("cat", "dog", "emu")
    assert len(images.train[1]) + len(images.held_out[1]) == 60
    assert 0 < len(images.held_out[1]) < 20
    assert images.train[0].shape[1:] == (3, 8, 8)
    for x, y in (images.train, images.held_out):
        assert torch.equal(x[:, 0, 4, 4].long() // 100, y)


def test_train_and_val_folders_are_taken_as_they_are(tmp_path: Path) -> None:
    for part, count in (("train", 4), ("val", 2)):
        for name in ("a", "b"):
            for i in range(count):
                _picture(tmp_path / part / name / f"{i}.jpg", 10 * i)
    images = read_byte_folder(tmp_path, side=8)
    assert (len(images.train[1]), len(images.held_out[1])) == (8, 4)


def test_an_unreadable_image_is_named(tmp_path: Path) -> None:
    for name in ("a", "b"):
        _picture(tmp_path / name / "good.png", 3)
    (tmp_path / "b" / "bad.png").write_bytes(b"not an image")
    with pytest.raises(ValueError, match=r"bad\.png cannot be read as an image"):
        read_byte_folder(tmp_path)


def test_one_class_is_not_enough(tmp_path: Path) -> None:
    for i in range(20):
        _picture(tmp_path / "only" / f"{i}.png", i)
    with pytest.raises(ValueError, match="images of one class only"):
        read_byte_folder(tmp_path)


def test_what_is_not_known_is_refused(tmp_path: Path) -> None:
    (tmp_path / "readme.txt").write_text("hello")
    with pytest.raises(FileNotFoundError, match=r"neither MNIST's idx files, nor CIFAR-10's"):
        read_byte_folder(tmp_path)
    with pytest.raises(FileNotFoundError, match="is not a folder"):
        read_byte_folder(tmp_path / "nowhere")


def test_cifar_records(tmp_path: Path) -> None:
    records = np.zeros((6, 3073), np.uint8)
    records[:, 0] = [0, 1, 2, 3, 4, 5]
    records[:, 1 + 1024 + 33] = 255  # green, second row, second column
    for name in ("data_batch_1.bin", "data_batch_2.bin", "test_batch.bin"):
        records.tofile(tmp_path / name)
    images = read_byte_folder(tmp_path)
    assert images.train[1].tolist() == [0, 1, 2, 3, 4, 5] * 2
    assert images.held_out[0][0, 1, 1, 1] == 255
    assert int(images.held_out[0].sum()) == 6 * 255
    (tmp_path / "test_batch.bin").write_bytes(bytes(3072))
    with pytest.raises(ValueError, match="must hold records of 3073 bytes, got 3072"):
        read_byte_folder(tmp_path)


def test_an_empty_part_is_named(tmp_path: Path) -> None:
    for part, count in (("train", 0), ("t10k", 2)):
        header = bytes([0, 0, 8, 3, 0, 0, 0, count, 0, 0, 0, 1, 0, 0, 0, 1])
        (tmp_path / f"{part}-images-idx3-ubyte").write_bytes(header + bytes(count))
        (tmp_path / f"{part}-labels-idx1-ubyte").write_bytes(
            bytes([0, 0, 8, 1, 0, 0, 0, count]) + bytes(count)
        )
    with pytest.raises(ValueError, match="has no training images"):
        read_byte_folder(tmp_path)


def test_fashion_mnist(data_folder: Path) -> None:
    images = read_byte_folder(data_folder / "fashion-mnist")
    assert images.train[0].shape == (60_000, 1, 28, 28)
    assert len(images.classes) == 10
