"""Photographs in class folders: the index, the cuts, the batches for any number of threads, decoded ones."""

from __future__ import annotations

import json
import math
import tarfile
import threading
import time
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from topkast.data.image_stream import (
    MEAN,
    NUM_DRAWS,
    STD,
    ImageStream,
    central_box,
    cut,
    made_ahead,
    random_box,
)
from topkast.data.imagenet import (
    ImageFiles,
    decode_images,
    index_images,
    open_decoded,
    read_imagenet,
)

Image = pytest.importorskip("PIL.Image")


def _picture(path: Path, seed: int, size: tuple[int, int] = (90, 60), mode: str = "RGB") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    coarse = np.random.default_rng(seed).integers(0, 256, (6, 9, 3), np.uint8)
    Image.fromarray(coarse).resize(size, Image.Resampling.BICUBIC).convert(mode).save(path)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for part, count in (("train", 5), ("val", 2)):
        for label, name in enumerate(("n02", "n01", "n03")):
            for i in range(count):
                _picture(tmp_path / part / name / f"{name}_{i}.JPEG", 100 * label + i)
    (tmp_path / "train" / "n01" / "notes.txt").write_text("not an image")
    (tmp_path / "train" / ".hidden").mkdir()
    return tmp_path


def test_files_are_indexed_by_class_and_name(folder: Path) -> None:
    train, val = read_imagenet(folder)
    assert train.classes == val.classes == ("n01", "n02", "n03")
    assert train.labels.tolist() == [0] * 5 + [1] * 5 + [2] * 5
    assert train.names[:5] == tuple(f"n01_{i}.JPEG" for i in range(5))
    assert train.path(7) == folder / "train" / "n02" / "n02_2.JPEG"
    assert len(val.names) == 6


def test_validation_keeps_the_labels_of_training(folder: Path) -> None:
    import shutil

    shutil.rmtree(folder / "val" / "n02")
    assert read_imagenet(folder)[1].labels.tolist() == [0, 0, 2, 2]
    _picture(folder / "val" / "n99" / "a.png", 0)
    with pytest.raises(ValueError, match="val has a class that the training images do not have: n99"):
        read_imagenet(folder)


def test_folders_that_cannot_be_are_named(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    empty = tmp_path_factory.mktemp("empty")
    with pytest.raises(
        FileNotFoundError, match=r"has no folder train; ImageNet can be had from image-net\.org"
    ):
        read_imagenet(empty)
    with pytest.raises(
        ValueError, match="must have a folder for each class, with its images in it; it has none"
    ):
        index_images(empty)
    (empty / "only").mkdir()
    with pytest.raises(ValueError, match=r"has one class only \(only\): there is nothing to tell apart"):
        index_images(empty)
    (empty / "other").mkdir()
    with pytest.raises(ValueError, match="only has no images; remove the folder"):
        index_images(empty)


draws = st.lists(st.floats(0, 1, exclude_max=True), min_size=NUM_DRAWS, max_size=NUM_DRAWS)


@given(width=st.integers(1, 3000), height=st.integers(1, 3000), draws=draws)
def test_random_boxes_are_within_and_of_the_right_shape(width: int, height: int, draws: list[float]) -> None:
    left, upper, right, lower = random_box(width, height, draws)
    assert 0 <= left < right <= width
    assert 0 <= upper < lower <= height
    if width > 100 and height > 100 and 3 / 4 <= width / height <= 4 / 3:
        w, h = right - left, lower - upper
        assert 0.07 < w * h / (width * height) <= 1
        assert 0.7 < w / h < 1.43


def test_random_boxes_have_every_area_alike() -> None:
    rng = np.random.default_rng(0)
    boxes = [random_box(500, 500, rng.random(NUM_DRAWS).tolist()) for _ in range(4000)]
    areas = np.array([(r - x) * (b - y) / 250_000 for x, y, r, b in boxes])
    # Uniform on [0.08, 1] would have mean 0.54; the largest do not fit in every shape and are drawn again.
    assert 0.45 < areas.mean() < 0.54
    ratios = np.log([(r - x) / (b - y) for x, y, r, b in boxes])
    assert abs(ratios.mean()) < 0.02
    assert math.log(0.74) < ratios.min()
    assert ratios.max() < math.log(1.35)


def test_an_image_too_long_is_cut_in_the_middle() -> None:
    assert random_box(1000, 10, [0.999] * NUM_DRAWS) == pytest.approx((493.33, 0, 506.67, 10), abs=0.01)
    assert random_box(9, 900, [0.999] * NUM_DRAWS) == pytest.approx((0, 444, 9, 456))


def test_the_middle_is_what_resizing_and_cutting_gives(tmp_path: Path) -> None:
    path = tmp_path / "a.png"
    _picture(path, 3, size=(600, 300))
    with Image.open(path) as image:
        short = image.resize((512, 256), Image.Resampling.BILINEAR)
        expected = np.asarray(short.crop((144, 16, 144 + 224, 16 + 224))).astype(int)
        result = cut(image, central_box(*image.size, 224 / 256), 224).astype(int)
    assert np.abs(expected - result).max() <= 1


def test_large_jpegs_are_decoded_small_and_look_the_same(tmp_path: Path) -> None:
    path = tmp_path / "a.jpg"
    _picture(path, 4, size=(1600, 1200))
    box = (100.0, 50.0, 1500.0, 1150.0)
    with Image.open(path) as image:
        quick = cut(image, box, 100).astype(int)
        assert image.size == (200, 150)
    with Image.open(path) as image:
        image.load()
        slow = cut(image, box, 100).astype(int)
    assert np.abs(quick - slow).mean() < 1


@pytest.mark.parametrize("mode", ["L", "P", "CMYK", "RGBA", "1"])
def test_every_kind_of_image_becomes_rgb(mode: str, tmp_path: Path) -> None:
    path = tmp_path / ("a.jpg" if mode == "CMYK" else "a.png")
    _picture(path, 5, mode=mode)
    with Image.open(path) as image:
        assert cut(image, (0, 0, 90, 60), 16).shape == (16, 16, 3)


def test_mirrored_is_mirrored(tmp_path: Path) -> None:
    _picture(tmp_path / "a.png", 6)
    with Image.open(tmp_path / "a.png") as image:
        plain, mirrored = (cut(image, (3, 4, 50, 60), 20, is_flipped=flip) for flip in (False, True))
    assert np.array_equal(plain[:, ::-1], mirrored)


def _equal(a: list, b: list) -> bool:
    return all(
        torch.equal(x, y) for one, other in zip(a, b, strict=True) for x, y in zip(one, other, strict=True)
    )


def test_batches_do_not_depend_on_threads_or_interruptions(folder: Path) -> None:
    train, _ = read_imagenet(folder)
    run = list(islice(ImageStream(train, 4, seed=1, size=16, workers=0).train(), 8))
    for workers, ahead in ((1, 0), (3, 2), (2, 9)):
        stream = ImageStream(train, 4, seed=1, size=16, workers=workers, ahead=ahead)
        assert _equal(run, list(islice(stream.train(), 8)))
        assert _equal(run[5:], list(islice(stream.train(start=5), 3)))
    assert not _equal(run, list(islice(ImageStream(train, 4, seed=2, size=16, workers=0).train(), 8)))
    images, labels = run[0]
    assert images.shape == (4, 3, 16, 16)
    assert images.dtype == torch.float32
    assert images.is_contiguous()
    assert labels.dtype == torch.int64


def test_evaluation_has_every_image_once_in_order(folder: Path) -> None:
    _, val = read_imagenet(folder)
    stream = ImageStream(val, 4, size=14, shorter=16)
    batches = list(stream.evaluation())
    assert [len(labels) for _, labels in batches] == [4, 2]
    assert torch.cat([labels for _, labels in batches]).tolist() == [0, 0, 1, 1, 2, 2]
    with val.open(1) as image:
        pixels = cut(image, central_box(90, 60, 14 / 16), 14)
    expected = (torch.from_numpy(pixels / 255) - torch.tensor(MEAN)) / torch.tensor(STD)
    torch.testing.assert_close(batches[0][0][1], expected.permute(2, 0, 1).float(), atol=1e-5, rtol=1e-5)
    ((whole, _),) = ImageStream(val, 100, size=14, shorter=16).evaluation()
    assert torch.equal(whole, torch.cat([images for images, _ in batches]))


@pytest.mark.parametrize("workers", [0, 2])
def test_an_unreadable_photograph_is_named(workers: int, folder: Path) -> None:
    train, _ = read_imagenet(folder)
    whole = train.path(7).read_bytes()
    for harm in (b"not an image", whole[: len(whole) // 2]):
        train.path(7).write_bytes(harm)
        with pytest.raises(ValueError, match=r"n02_2\.JPEG cannot be read as an image"):
            list(ImageStream(train, 5, size=16, workers=workers).evaluation())


def test_sizes_that_cannot_be_are_refused(folder: Path) -> None:
    train, _ = read_imagenet(folder)
    with pytest.raises(ValueError, match=r"`size` must be between 1 and `shorter` \(256\), got 300"):
        ImageStream(train, 4, size=300)
    with pytest.raises(ValueError, match="`workers` and `ahead` must be 0 or more, got -1 and 2"):
        ImageStream(train, 4, workers=-1).train()
    with pytest.raises(
        ValueError, match=r"`batch` must be between 1 and the number of examples \(15\), got 16"
    ):
        ImageStream(train, 16).train()


def test_no_more_is_made_ahead_than_asked() -> None:
    made: list[int] = []
    lock = threading.Lock()

    def make(key: int) -> int:
        with lock:
            made.append(key)
        return -key

    batches = made_ahead(make, ([3 * i, 3 * i + 1, 3 * i + 2] for i in range(1000)), workers=2, ahead=2)
    assert [next(batches) for _ in range(4)] == [[-3 * i, -3 * i - 1, -3 * i - 2] for i in range(4)]
    time.sleep(0.05)
    assert max(made) < 3 * (4 + 2 + 1)
    batches.close()  # pyright: ignore[reportAttributeAccessIssue]
    assert not [t for t in threading.enumerate() if t.name.startswith("topkast-data")]


def test_decoded_images_are_mapped_and_train_alike(folder: Path, tmp_path: Path) -> None:
    train, _ = read_imagenet(folder)
    decode_images(train, tmp_path / "decoded", side=32)
    decoded = open_decoded(tmp_path / "decoded")
    assert isinstance(decoded.images, np.memmap)
    assert decoded.images.shape == (15, 32, 32, 3)
    assert torch.equal(decoded.labels, train.labels)
    assert decoded.classes == train.classes
    # The middle of the decoded middle square is the middle of the file, up to a second resizing.
    files, kept = (ImageStream(source, 15, size=28, shorter=32) for source in (train, decoded))
    (x, _), (y, _) = next(files.evaluation()), next(kept.evaluation())
    assert float((x - y).abs().mean()) < 0.05
    stream = ImageStream(decoded, 4, size=16)
    assert _equal(list(islice(stream.train(), 3)), list(islice(stream.train(), 3)))
    assert sorted(p.name for p in (tmp_path / "decoded").iterdir()) == [
        "classes.json",
        "images.npy",
        "labels.npy",
    ]


def test_decoding_that_fails_leaves_no_images(folder: Path, tmp_path: Path) -> None:
    train, _ = read_imagenet(folder)
    train.path(3).write_bytes(b"no")
    with pytest.raises(ValueError, match=r"n01_3\.JPEG cannot be read"):
        decode_images(train, tmp_path / "decoded", side=8)
    with pytest.raises(FileNotFoundError, match=r"has no images\.npy; `decode_images` makes it"):
        open_decoded(tmp_path / "decoded")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        (
            "images.npy",
            np.zeros((15, 8, 8)),
            r"images\.npy must be uint8 \(count, height, width, 3\), got float64",
        ),
        ("images.npy", np.zeros((15, 8, 8), np.uint8), "must be uint8"),
        ("images.npy", np.array([print], object), "is damaged, or no array of numbers"),
        ("images.npy", b"\x93NUMPY", "is damaged, or no array of numbers"),
        ("images.npy", b"", "is damaged, or no array of numbers"),
        (
            "labels.npy",
            np.zeros(14, np.int64),
            r"must have a number for each of 15 images, got int64 \(14,\)",
        ),
        ("labels.npy", np.full(15, 3), "must have labels below 3, the number of classes, got 3 to 3"),
        ("classes.json", b"[", r"classes\.json is damaged"),
        ("classes.json", json.dumps({"a": 1}).encode(), "must have a list of names"),
    ],
)
def test_decoded_files_that_do_not_fit_are_refused(
    name: str, content: np.ndarray | bytes, message: str, folder: Path, tmp_path: Path
) -> None:
    decode_images(read_imagenet(folder)[0], tmp_path / "decoded", side=8)
    path = tmp_path / "decoded" / name
    if isinstance(content, bytes):
        path.write_bytes(content)
    else:
        np.save(path, content, allow_pickle=True)
    with pytest.raises(ValueError, match=message):
        open_decoded(tmp_path / "decoded")


def test_cut_decoded_images_are_refused(folder: Path, tmp_path: Path) -> None:
    decode_images(read_imagenet(folder)[0], tmp_path / "decoded", side=8)
    path = tmp_path / "decoded" / "images.npy"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(ValueError, match="is damaged, or no array of numbers"):
        open_decoded(tmp_path / "decoded")


@pytest.fixture
def imagenette(data_folder: Path, tmp_path: Path) -> ImageFiles:
    with tarfile.open(data_folder / "imagenette" / "imagenette2-224-sample.tar.xz") as archive:
        archive.extractall(tmp_path, filter="data")
    return read_imagenet(tmp_path / "imagenette2-224-sample")[0]


def test_real_photographs(imagenette: ImageFiles) -> None:
    assert len(imagenette.classes) == 10
    assert imagenette.classes[0] == "n01440764"
    images, labels = next(ImageStream(imagenette, 24).train())
    assert images.shape == (24, 3, 224, 224)
    assert len(set(labels.tolist())) > 3
    # Natural images are about of mean 0 and size 1 after it.
    assert abs(float(images.mean())) < 0.6
    assert 0.6 < float(images.std()) < 1.6
