"""What a run is compared with, and the table that says who is where."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from topkast.cli.train import _summary
from topkast.report.summary import quality_at, shortest
from topkast.store.record import read_run
from topkast.store.run import Progress
from topkast.train import job, references
from topkast.train.config import Config
from topkast.train.display import Display
from topkast.train.resolve import make_task, resolve
from topkast.train.task import Task


@pytest.fixture
def text_file(tmp_path: Path) -> Path:
    path = tmp_path / "text.txt"
    path.write_bytes(bytes(range(1, 256)) * 40)
    return path


def decoder(path: Path, **train: object) -> tuple[Config, Task]:
    config = Config().with_values(
        {
            "data": {"data": str(path)},
            "model": {"width": 32, "depth": 1, "heads": 2, "window": 8},
            "method": {"engine": "masked"},
            "train": {"steps": 6, "batch": 2, "threads": 1, **train},
            "run": {"evaluate_every": 2, "checkpoint_every": 3},
        }
    )
    task = make_task(config)
    return resolve(config, task), task


def count(task: Task) -> int:
    return sum(parameter.numel() for parameter in task.network().build().parameters())


@pytest.mark.parametrize("share", [0.05, 0.2, 0.7, 1.0])
def test_a_narrow_network_has_the_parameters_that_are_nearest(text_file: Path, share: float) -> None:
    _, task = decoder(text_file)
    wanted = round(share * count(task))
    narrow, width = references.narrowed(task, wanted)
    by_width = {}
    for candidate in range(2, 33, 2):  # both heads must be as wide
        _, other = decoder(text_file)
        vars(other)["width"] = candidate
        by_width[candidate] = abs(count(other) - wanted)
    assert abs(count(narrow) - wanted) == min(by_width.values())
    assert vars(narrow)["width"] == round(32 * width)
    assert vars(task)["width"] == 32  # which goes on as it was


def test_a_narrow_mlp_has_narrow_hidden_layers() -> None:
    config = Config().with_values({"data": {"task": "images"}})
    task = make_task(config)
    narrow, share = references.narrowed(task, count(task) // 5)
    assert len(vars(narrow)["hidden"]) == len(vars(task)["hidden"])
    assert abs(count(narrow) / (count(task) / 5) - 1) < 0.05
    assert 0.1 < share < 0.5


def test_each_is_trained_at_a_rate_of_its_own(text_file: Path) -> None:
    config, task = decoder(text_file, lr=1e-3)
    dense, same = references.reference(config, task, "dense", 1000)
    assert (dense.method.method, dense.train.lr, same) == ("dense", 1e-3, task)
    fixed, _ = references.reference(config, task, "static", 1000)
    assert fixed.method.forward_sparsity == config.method.forward_sparsity
    assert fixed.train == config.train  # the rule for sparse layers is in there
    narrow, narrow_task = references.reference(config, task, references.SMALL, count(task) // 4)
    share = vars(narrow_task)["width"] / 32
    assert narrow.method.method == "dense"
    assert narrow.train.lr == pytest.approx(1e-3 / math.sqrt(share), rel=1e-3)


def test_a_job_says_who_is_where(text_file: Path, tmp_path: Path) -> None:
    config, _ = decoder(text_file)
    job.start(config, tmp_path / "run", Display())
    run = read_run(tmp_path / "run")
    assert list(run.references) == ["fixed random mask 90 %", "dense", "dense, as many parameters"]
    narrow = run.references["dense, as many parameters"]
    assert abs(narrow.parameters / run.parameters["used"] - 1) < 0.25  # two columns are many of so few
    text = _summary(run)
    assert "after" in text.splitlines()[1]
    assert all(
        any(line.startswith(name) for line in text.splitlines()) for name in [run.name, *run.references]
    )


def test_quality_at_a_time_is_on_the_line_between_evaluations() -> None:
    points = [
        Progress(step=s, seconds=float(s), loss=0.0, quality=q, flops=0.0) for s, q in ((1, 4.0), (3, 2.0))
    ]
    assert quality_at(points, 2.0) == 3.0
    assert quality_at(points, 1.0) == 4.0
    assert quality_at(points, 9.0) == 2.0
    assert math.isnan(quality_at(points, 0.5))
    assert math.isnan(quality_at([], 1.0))
    assert shortest([points, [], points[:1]]) == 1.0
    assert math.isnan(shortest([]))
