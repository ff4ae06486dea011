"""`topkast train --device`: batches go where the network is, and the numbers are those of the CPU."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional as F
from torch.utils._python_dispatch import _disable_current_modes

from devices.elsewhere import WithDevice
from topkast.cli.main import main
from topkast.train import events
from topkast.train.config import Config
from topkast.train.job import check_ranks
from topkast.train.resolve import build, make_method, make_task, resolve
from topkast.train.sampling import sample
from topkast.train.trainer import Trainer

pytestmark = pytest.mark.usefixtures("one_thread")

SIZES = {"width": 32, "heads": 2, "window": 16}
JOBS: dict[str, dict[str, dict[str, Any]]] = {
    "decoder": {"data": {"task": "text"}, "model": {**SIZES, "depth": 1}},
    "transformer-xl": {
        "data": {"task": "text"},
        "model": {"model": "transformer-xl", **SIZES, "depth": 2, "memory": 16},
    },
    "mlp": {"data": {"task": "images"}, "model": {"hidden": (16,)}},
}


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "text.txt"
    path.write_text("the quick brown fox jumps over the lazy dog\n" * 400)
    return path


def train(job: str, path: Path, device: str) -> tuple[Trainer, list[Any]]:
    """Some steps, and all that a run says of itself on the way."""
    config = (
        Config().with_values(JOBS[job]).with_values({"method": {"engine": "masked", "exchange_every": 2}})
    )
    config = config.with_values({"train": {"steps": 6, "batch": 4, "threads": 1}})
    if config.data.task == "text":
        config = config.with_values({"data": {"data": str(path)}})
    task = make_task(config)
    config = resolve(config, task).with_values({"train": {"device": device}})
    trainer = Trainer(config, task, make_method(config))
    seen: list[Any] = [trainer.take_step() for _ in range(6)]
    seen += [trainer.quality(), events.count_flops(trainer).total, sample(trainer.model, trainer.task, 20)]
    assert events.held(trainer).sparse > 0
    return trainer, seen


def build_before(*arguments: Any) -> Any:
    """Makes the network as ever: for what is drawn later it uses torch's own meta device."""
    with _disable_current_modes():
        return build(*arguments)


@pytest.mark.parametrize("job", JOBS)
def test_a_run_on_a_device_is_that_of_the_cpu(job: str, text: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("topkast.train.trainer.build", build_before)
    _, expected = train(job, text, "cpu")
    with WithDevice():
        trainer, seen = train(job, text, "meta")  # the name of the tests' own device
        assert all(p.device.type == "meta" for p in trainer.model.parameters())
    *figures, text_written = seen
    assert figures == pytest.approx(expected[:-1], rel=1e-5)  # the CPU sums penalties in another order
    assert text_written == expected[-1]


@pytest.mark.parametrize("name", ["gpu", "cuda:x"])
def test_a_name_that_is_no_device_is_refused(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "--device", name, "--steps", "1"]) == 2
    assert (
        f"--device must be a device of torch such as cpu, cuda or cuda:1, got '{name}'"
        in capsys.readouterr().err
    )


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_a_device_that_is_not_there_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "--device", "cuda", "--steps", "1"]) == 2
    assert "--device 'cuda' is not there" in (error := capsys.readouterr().err)
    assert "leave it out to train on the CPU" in error


def test_several_ranks_train_on_the_cpu_only() -> None:
    config = Config().with_values({"train": {"device": "cuda", "batch": 4}})
    with pytest.raises(ValueError, match="train.device must be cpu with several ranks"):
        check_ranks(config, None, 2)


def test_cross_entropy_of_the_device_is_that_of_the_cpu() -> None:
    # What the comparison above rests on.
    x, y = torch.randn(3, 5), torch.tensor([1, 0, 4])
    with WithDevice():
        assert float(F.cross_entropy(x.to("meta"), y.to("meta"))) == float(F.cross_entropy(x, y))
