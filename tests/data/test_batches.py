"""Shifts and mirrors against a plain loop, the order of batches, and normalising."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from topkast.data.batches import ImageBatches, Order, crop_and_flip, generator, normalised


def _all_crops(image: Tensor, padding: int) -> list[Tensor]:
    """Every result that one image may have, by slicing and flipping."""
    _, height, width = image.shape
    padded = torch.zeros(image.shape[0], height + 2 * padding, width + 2 * padding, dtype=image.dtype)
    padded[:, padding : padding + height, padding : padding + width] = image
    crops = [
        padded[:, u : u + height, v : v + width]
        for u in range(2 * padding + 1)
        for v in range(2 * padding + 1)
    ]
    return crops + [crop.flip(2) for crop in crops]


@given(
    shape=st.tuples(st.integers(1, 5), st.integers(1, 3), st.integers(1, 6), st.integers(1, 6)),
    padding=st.integers(0, 3),
    seed=st.integers(0, 100),
)
def test_every_image_is_one_of_its_crops(shape: tuple[int, int, int, int], padding: int, seed: int) -> None:
    images = torch.randint(1, 256, shape, dtype=torch.uint8)
    result = crop_and_flip(images, generator(seed), padding)
    assert result.dtype == torch.uint8
    assert torch.equal(result, crop_and_flip(images, generator(seed), padding))
    for image, crop in zip(images, result, strict=True):
        assert any(torch.equal(crop, one) for one in _all_crops(image, padding))


def test_all_crops_occur_and_equally_often() -> None:
    image = torch.arange(1, 13, dtype=torch.uint8).view(1, 3, 4)
    results = crop_and_flip(image.expand(9000, 1, 3, 4), generator(0), padding=1)
    counts = Counter(tuple(result.flatten().tolist()) for result in results)
    assert set(counts) == {tuple(crop.flatten().tolist()) for crop in _all_crops(image, 1)}
    # 18 results, 500 each expected; the deviation of a count is 22.
    assert all(abs(count - 500) < 5 * 22 for count in counts.values())


def test_without_padding_only_mirrors_are_left() -> None:
    images = torch.randint(256, (50, 3, 8, 8), dtype=torch.uint8)
    result = crop_and_flip(images, generator(1), padding=0)
    flipped = (result != images).flatten(1).any(1)
    assert 10 < int(flipped.sum()) < 40
    assert torch.equal(result[flipped], images[flipped].flip(3))


def test_what_cannot_be_augmented_is_refused() -> None:
    with pytest.raises(
        ValueError, match=r"`images` must be \(count, channels, height, width\), got shape \(3, 8, 8\)"
    ):
        crop_and_flip(torch.zeros(3, 8, 8), generator(0))
    with pytest.raises(ValueError, match="`padding` must be 0 or more, got -1"):
        crop_and_flip(torch.zeros(1, 3, 8, 8), generator(0), padding=-1)


@given(count=st.integers(1, 50), batch=st.integers(1, 50), seed=st.integers(0, 9), step=st.integers(0, 40))
def test_an_epoch_has_no_example_twice_and_a_step_its_own(
    count: int, batch: int, seed: int, step: int
) -> None:
    if batch > count:
        with pytest.raises(
            ValueError, match=rf"between 1 and the number of examples \({count}\), got {batch}"
        ):
            Order(count, batch, seed)
        return
    order = Order(count, batch, seed)
    epoch, chosen = order.at(step)
    assert epoch == step // order.steps_per_epoch
    assert torch.equal(chosen, Order(count, batch, seed).at(step)[1])
    first = epoch * order.steps_per_epoch
    seen = torch.cat([order.at(first + t)[1] for t in range(order.steps_per_epoch)])
    assert len(set(seen.tolist())) == len(seen) == count - count % batch


def test_orders_differ_by_epoch_and_seed() -> None:
    orders = {tuple(Order(100, 100, seed).at(epoch)[1].tolist()) for seed in range(5) for epoch in range(5)}
    assert len(orders) == 25
    with pytest.raises(ValueError, match="`step` must be 0 or more, got -1"):
        Order(10, 5).at(-1)


def test_batches_are_a_function_of_the_step() -> None:
    part = (torch.randint(256, (23, 3, 8, 8), dtype=torch.uint8), torch.arange(23))
    batches = ImageBatches(part, 5, (0.5, 0.5, 0.5), (0.25, 0.25, 0.25), seed=3)
    run = [batches.at(step) for step in range(10)]
    again = ImageBatches(part, 5, (0.5, 0.5, 0.5), (0.25, 0.25, 0.25), seed=3).at(7)
    assert all(torch.equal(a, b) for a, b in zip(run[7], again, strict=True))
    images, labels = run[0]
    assert images.dtype == torch.float32
    assert images.shape == (5, 3, 8, 8)
    plain, same = ImageBatches(part, 5, (0.5, 0.5, 0.5), (0.25, 0.25, 0.25), seed=3, augment=False).at(0)
    assert torch.equal(labels, same)
    torch.testing.assert_close(plain, (part[0][labels] / 255 - 0.5) / 0.25)
    assert not torch.equal(images, plain)


def test_evaluation_has_every_image_once_as_it_is() -> None:
    part = (torch.randint(256, (23, 1, 4, 4), dtype=torch.uint8), torch.arange(23))
    batches = list(ImageBatches(part, 5, [0.0], [1.0]).evaluation())
    assert [len(labels) for _, labels in batches] == [5, 5, 5, 5, 3]
    torch.testing.assert_close(torch.cat([images for images, _ in batches]), part[0] / 255)


def test_normalising_leaves_its_input_alone() -> None:
    images = torch.full((1, 2, 1, 1), 51.0)
    result = normalised(images, [0.1, 0.2], [0.5, 0.1])
    torch.testing.assert_close(result.flatten(), torch.tensor([0.2, 0.0]))
    assert float(images[0, 0]) == 51.0
