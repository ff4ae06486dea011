"""The shares of ranks together are the batch of one process."""

from __future__ import annotations

import itertools
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from topkast.data.batches import Share
from topkast.data.image_stream import ImageStream
from topkast.methods.named import METHODS
from topkast.train.config import Config
from topkast.train.job import check_ranks
from topkast.train.resolve import make_method, make_task, resolve

pytestmark = pytest.mark.usefixtures("one_thread")

SMALL: dict[str, dict[str, dict[str, Any]]] = {
    "decoder": {"model": {"model": "decoder", "width": 16, "depth": 1, "heads": 2, "window": 16}},
    "transformer-xl": {
        "model": {"model": "transformer-xl", "width": 16, "depth": 1, "heads": 2, "window": 16, "memory": 16}
    },
    "mlp": {"data": {"task": "images"}, "model": {"hidden": [16]}},
}


@pytest.mark.parametrize("name", SMALL)
def test_the_mean_loss_of_shares_is_that_of_the_batch(name: str, tmp_path: Path) -> None:
    """Over three steps, so that what is remembered of one comes into the next."""
    values = dict(SMALL[name])
    if name != "mlp":
        text = tmp_path / "text.txt"
        text.write_bytes(b"the quick brown fox jumps over the lazy dog. " * 99)
        values["data"] = {"data": str(text)}
    tasks = [make_task(Config().with_values({**values, "train": {"batch": 8}})) for _ in range(5)]
    whole, *shares = tasks
    for rank, task in enumerate(shares):
        task.share = Share(rank, 4)
    torch.manual_seed(0)
    model = whole.network().build()
    generators = [torch.Generator().manual_seed(0) for _ in tasks]
    for step in range(3):
        losses = [task.loss(model, step, g) for task, g in zip(tasks, generators, strict=True)]
        others = torch.stack(losses[1:])
        assert others.std() > 1e-3, "the shares are not all the same"
        torch.testing.assert_close(others.mean(), losses[0], rtol=1e-6, atol=1e-6)


class Pictures:
    """Images of one colour each, which says their number."""

    labels = torch.arange(12)
    classes = tuple(map(str, range(12)))

    def open(self, index: int) -> Any:
        image = pytest.importorskip("PIL.Image")
        return nullcontext(image.new("RGB", (8, 8), (index, index, index)))


def test_photographs_are_read_by_the_rank_that_needs_them() -> None:
    stream = ImageStream(Pictures(), batch=4, size=4, shorter=4, workers=0)

    def labels(share: Share | None) -> list[Tensor]:
        return [label for _, label in itertools.islice(stream.train(1, share), 5)]

    halves = zip(labels(Share(0, 2)), labels(Share(1, 2)), strict=True)
    for whole, pair in zip(labels(None), halves, strict=True):
        assert torch.equal(torch.cat(pair), whole)


@pytest.mark.parametrize("method", METHODS)
def test_who_cannot_train_together_is_told(method: str) -> None:
    config = Config().with_values({**SMALL["mlp"], "train": {"batch": 6}, "method": {"method": method}})
    config = resolve(config, make_task(config))
    made = make_method(config)
    with pytest.raises(ValueError, match=r"must be divisible by their number \(4\), got 6"):
        check_ranks(config, made, 4)
    if method in ("str", "dsr", "snfs"):
        with pytest.raises(ValueError, match=f"{method} changes the sizes of its sets, which 2 ranks cannot"):
            check_ranks(config, made, 2)
    else:
        check_ranks(config, made, 2)
