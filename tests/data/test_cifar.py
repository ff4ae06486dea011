"""CIFAR-10 in its three forms, and files that are damaged, altered or hostile."""

from __future__ import annotations

import hashlib
import pickle
import struct
import tempfile
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from topkast.data import cifar
from topkast.data.cifar import CLASSES, MD5, read_batch_pickle, read_cifar10

COUNT = 12


def _records(seed: int = 0, count: int = COUNT) -> np.ndarray:
    records = np.random.default_rng(seed).integers(0, 256, (count, 3073), np.uint8)
    records[:, 0] %= 10
    return records


def _string(text: bytes) -> bytes:
    return b"U" + bytes([len(text)]) + text if len(text) < 256 else b"T" + struct.pack("<I", len(text)) + text


def _python_2_pickle(records: np.ndarray, kind: bytes = b"u1", content: bytes | None = None) -> bytes:
    """As Python 2 wrote the published files: protocol 2, strings of bytes, numpy by its old name."""
    labels = b"".join(b"K" + bytes([label]) for label in records[:, 0].tolist())
    content = records[:, 1:].tobytes() if content is None else content
    array = (
        b"cnumpy.core.multiarray\n_reconstruct\nq\x07cnumpy\nndarray\nq\x08K\x00\x85U\x01b\x87Rq\x09"
        b"(K\x01M"
        + struct.pack("<H", len(records))
        + b"M\x00\x0c\x86cnumpy\ndtype\nq\x0a"
        + _string(kind)
        + b"K\x00K\x01\x87Rq\x0b"
        b"(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb\x89" + _string(content) + b"tb"
    )
    return (
        b"\x80\x02}q\x01(U\x0bbatch_labelq\x02U\x15training batch 1 of 5q\x03U\x06labelsq\x04]q\x05("
        + labels
        + b"eU\x04dataq\x06"
        + array
        + b"U\x09filenamesq\x0c]q\x0d("
        + b"".join(_string(b"%d.png" % i) for i in range(len(records)))
        + b"eu."
    )


def _write(folder: Path, form: str) -> Path:
    for i, name in enumerate(("data_batch_1", "data_batch_2", "test_batch")):
        if form == ".bin":
            _records(i).tofile(folder / f"{name}.bin")
        else:
            (folder / name).write_bytes(_python_2_pickle(_records(i)))
    return folder


@pytest.mark.parametrize("form", [".bin", "python"])
def test_both_published_forms_give_the_same(form: str, tmp_path: Path) -> None:
    images = read_cifar10(_write(tmp_path, form))
    for (x, y), records in (
        (images.train, np.concatenate([_records(0), _records(1)])),
        (images.held_out, _records(2)),
    ):
        assert x.dtype == torch.uint8
        assert x.numpy().tobytes() == records[:, 1:].tobytes()
        assert x.shape == (len(records), 3, 32, 32)
        assert y.tolist() == records[:, 0].tolist()
    assert images.classes == CLASSES


def test_mean_and_deviation_are_those_of_bytes_as_numbers(tmp_path: Path) -> None:
    images = read_cifar10(_write(tmp_path, ".bin"))
    x = images.train[0] / 255
    mean, std = images.mean_std()
    torch.testing.assert_close(mean, x.mean((0, 2, 3)))
    torch.testing.assert_close(std, x.std((0, 2, 3), correction=0))


class _Evil:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        import os

        return os.system, ("touch ran",)


@pytest.mark.parametrize("protocol", range(6))
def test_a_pickle_with_code_is_refused_and_not_run(
    protocol: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "data_batch_1"
    path.write_bytes(pickle.dumps({b"data": _Evil(), b"labels": []}, protocol))
    with pytest.raises(
        ValueError, match=r"data_batch_1 is not a batch of CIFAR-10: it has .* nothing of it was run"
    ):
        read_batch_pickle(path)
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    ("program", "message"),
    [
        (b"\x80\x02cnumpy\nload\nU\x05a.npy\x85R.", "it has the name 'numpy load'"),
        (b"\x80\x02cbuiltins\neval\nU\x051+1+1\x85R.", "it has the name 'builtins eval'"),
        (b"\x80\x02cnumpy.core.multiarray\n_reconstruct.__globals__\n.", "it has the name"),
        (b"\x80\x02P7\n.", "it has the operation PERSID"),
        (b"(U\x04evilios\nsystem\n.", "it has the operation INST"),
        (b"\x80\x02}r\xff\xff\xff\x7f.", "it has a memo of 2147483647"),
        (b"\x80\x02}", "is no pickle, or a damaged one"),
        (b"", "is no pickle, or a damaged one"),
        (b"hello", "it has the operation LIST"),
        (b"\x80\x02K\x07.", "must hold a dictionary with `data` and `labels`"),
        (b"\x80\x02}K\x07}b.", "is damaged: "),
        # Altering one of our own stand-ins from within must fail too.
        (b"\x80\x02cnumpy\ndtype\nN}U\x08__init__K\x07s\x86b.", "is damaged: "),
        (b"\x80\x02}U\x04dataK\x07sU\x06labels]s.", "must be an array of bytes, 3072 for each image"),
    ],
)
def test_hostile_and_senseless_pickles_are_refused(program: bytes, message: str, tmp_path: Path) -> None:
    path = tmp_path / "data_batch_1"
    path.write_bytes(program)
    with pytest.raises(ValueError, match=message):
        read_batch_pickle(path)


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (_python_2_pickle(_records())[:-1000], "is no pickle, or a damaged one"),
        (_python_2_pickle(_records(), kind=b"O8"), "must be an array of bytes, .* got another type"),
        (_python_2_pickle(_records(), content=bytes(100)), r"got 100 bytes for shape \(12, 3072\)"),
        (
            _python_2_pickle(_records()).replace(b"]q\x05(", b"]q\x05(K\x01", 1),
            "`labels` in .* must be a list of 12 numbers",
        ),
    ],
)
def test_damaged_python_batches_are_named(raw: bytes, message: str, tmp_path: Path) -> None:
    path = tmp_path / "data_batch_1"
    path.write_bytes(raw)
    with pytest.raises(ValueError, match=message):
        read_batch_pickle(path)


@given(
    # What is not pixels is at the two ends.
    changes=st.lists(
        st.tuples(st.integers(-60, 300), st.binary(min_size=1, max_size=4)), min_size=1, max_size=4
    )
)
def test_whatever_is_changed_in_a_pickle_it_is_read_or_named(changes: list[tuple[int, bytes]]) -> None:
    content = bytearray(_python_2_pickle(_records(count=3)))
    for where, what in changes:
        at = where % len(content)
        content[at : at + len(what)] = what
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "data_batch_1"
        path.write_bytes(content)
        try:
            images, labels = read_batch_pickle(path)
            assert images.shape == (len(labels), 3, 32, 32)
        except ValueError as error:
            assert str(path) in str(error)


@pytest.mark.parametrize("form", [".bin", "python"])
def test_labels_beyond_ten_classes_are_refused(form: str, tmp_path: Path) -> None:
    records = _records()
    records[3, 0] = 11
    _write(tmp_path, form)
    path = tmp_path / ("data_batch_2.bin" if form == ".bin" else "data_batch_2")
    path.write_bytes(records.tobytes() if form == ".bin" else _python_2_pickle(records))
    with pytest.raises(ValueError, match=r"data_batch_2.* has label 11, CIFAR-10 has 0 to 9"):
        read_cifar10(tmp_path)


def test_missing_batches_are_named(tmp_path: Path) -> None:
    with pytest.raises(
        FileNotFoundError, match=r"has no data_batch_1\.bin.*can be had from www\.cs\.toronto\.edu"
    ):
        read_cifar10(tmp_path)
    _write(tmp_path, ".bin")
    (tmp_path / "test_batch.bin").unlink()
    with pytest.raises(FileNotFoundError, match=r"has training batches but no test_batch\.bin"):
        read_cifar10(tmp_path)


def test_names_of_classes_come_from_the_folder(tmp_path: Path) -> None:
    _write(tmp_path, ".bin")
    (tmp_path / "batches.meta.txt").write_text("\n".join("abcdefghij") + "\n\n")
    assert read_cifar10(tmp_path).classes == tuple("abcdefghij")
    (tmp_path / "batches.meta.txt").write_text("one\n")
    with pytest.raises(ValueError, match="must have 10 names of classes, got 1"):
        read_cifar10(tmp_path)


def test_a_whole_batch_must_be_the_published_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cifar, "_WHOLE", COUNT)
    for i, name in enumerate(("data_batch_1", "data_batch_2", "test_batch")):
        monkeypatch.setitem(MD5, name, hashlib.md5(_records(i).tobytes()).hexdigest())
    _write(tmp_path, ".bin")
    read_cifar10(tmp_path)
    changed = _records(1)
    changed[0, 7] ^= 1
    changed.tofile(tmp_path / "data_batch_2.bin")
    with pytest.raises(
        ValueError, match=r"data_batch_2\.bin is damaged: the MD5 of its 12 records .*`check=False`"
    ):
        read_cifar10(tmp_path)
    read_cifar10(tmp_path, check=False)


@pytest.fixture
def mosaics(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Mosaics of 3 × 3 images of 32 × 32 pixels, batches 1 and 3 of training and the test batch."""
    image = pytest.importorskip("PIL.Image")
    monkeypatch.setattr(cifar, "_TILES", 3)
    monkeypatch.setattr(cifar, "_WHOLE", 9)
    rng = np.random.default_rng(0)
    for name in ("data_batch_1", "data_batch_3", "test_batch"):
        pixels = rng.integers(0, 256, (96, 96, 3), np.uint8)
        image.fromarray(pixels).save(tmp_path / f"{name}.webp", lossless=True)
    np.savez(tmp_path / "labels.npz", train=np.arange(45) % 10, test=np.arange(9))
    return tmp_path


def test_mosaics_are_cut_in_their_order(mosaics: Path) -> None:
    images = read_cifar10(mosaics, check=False)
    x, y = images.train
    assert y.tolist() == [
        *range(9),
        *(label % 10 for label in range(18, 27)),
    ]  # those of batch 2 are passed over
    from PIL import Image

    mosaic = np.asarray(Image.open(mosaics / "data_batch_3.webp").convert("RGB"))
    for tile in range(9):
        row, column = 32 * (tile // 3), 32 * (tile % 3)
        expected = mosaic[row : row + 32, column : column + 32].transpose(2, 0, 1)
        assert np.array_equal(x[9 + tile].numpy(), expected)
    with pytest.raises(ValueError, match=r"data_batch_1\.webp is damaged: the MD5"):
        read_cifar10(mosaics)


def test_damaged_mosaics_are_named(mosaics: Path) -> None:
    from PIL import Image

    path = mosaics / "data_batch_3.webp"
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ValueError, match=r"data_batch_3\.webp cannot be read as an image"):
        read_cifar10(mosaics, check=False)
    Image.new("RGB", (96, 64)).save(path)
    with pytest.raises(ValueError, match="must be a mosaic of 96 × 96 pixels, got 96 × 64"):
        read_cifar10(mosaics, check=False)


def _labels_of_objects(path: Path) -> None:
    np.savez(path, train=np.array([print] * 45, dtype=object), test=np.arange(9))


def _cut_labels(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-40])


@pytest.mark.parametrize(
    ("harm", "message"),
    [
        (_labels_of_objects, "must be an .npz file with numbers as 'train': Object arrays cannot be loaded"),
        (_cut_labels, "must be an .npz file with numbers as 'train'"),
        (lambda path: np.savez(path, other=np.arange(9)), "must be an .npz file with numbers as 'train'"),
        (lambda path: path.write_bytes(pickle.dumps(1)), "must be an .npz file with numbers as 'train'"),
        (
            lambda path: np.savez(path, train=np.arange(20) % 10),
            "must have a label for each of 27 images, got int64",
        ),
        (lambda path: np.savez(path, train=np.ones(45)), "must have a label for each .* got float64"),
        (lambda path: np.savez(path, train=np.arange(45)), "has label 17, CIFAR-10 has 0 to 9"),
        (lambda path: np.savez(path, train=-np.arange(45)), "has label -8, CIFAR-10 has 0 to 9"),
    ],
)
def test_labels_that_cannot_be_are_refused(harm, message: str, mosaics: Path) -> None:
    (mosaics / "data_batch_2.webp").write_bytes((mosaics / "data_batch_1.webp").read_bytes())
    harm(mosaics / "labels.npz")
    with pytest.raises(ValueError, match=message):
        read_cifar10(mosaics, check=False)


def test_mosaics_need_labels(mosaics: Path) -> None:
    (mosaics / "labels.npz").unlink()
    with pytest.raises(
        FileNotFoundError, match=r"labels\.npz does not exist: it has the labels of the mosaics"
    ):
        read_cifar10(mosaics, check=False)


def test_the_real_test_batch_has_the_published_digest(data_folder: Path) -> None:
    pytest.importorskip("PIL.Image")
    path = data_folder / "cifar10" / "test_batch.webp"
    images, labels = cifar._read_mosaic(path)
    cifar._check(path, "test_batch", images, labels)
    assert np.bincount(labels).tolist() == [1000] * 10


@pytest.mark.slow
def test_the_real_cifar_10(data_folder: Path) -> None:
    images = read_cifar10(data_folder / "cifar10")
    assert len(images.train[1]) % 10_000 == 0
    assert images.held_out[0].shape == (10_000, 3, 32, 32)
    mean, _ = images.mean_std()
    torch.testing.assert_close(mean, torch.tensor([0.4914, 0.4822, 0.4465]), atol=2e-3, rtol=0)
