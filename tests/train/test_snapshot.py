"""A run that is written, read into freshly built objects and continued equals the one that never stopped."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from topkast.train import checkpoint, restart, snapshot
from train.conftest import METHODS, OPTIMIZERS, SCHEDULES, Run, assert_same

pytestmark = pytest.mark.usefixtures("one_thread")


def assert_continues(tmp_path: Path, **options: Any) -> None:
    run = Run.build(0, **options)
    run.train(0, 7)  # between two refreshes
    checkpoint.write(tmp_path, run.take(7))
    there = restart.latest(tmp_path)
    assert there.damaged == {}
    run.train(7, 16)

    other = Run.build(999, **options)  # other weights, another seed
    other.train(0, 2)
    assert there.snapshot is not None
    other.restore(there.snapshot)
    other.train(7, 16)
    assert_same(run.everything(), other.everything())
    if run.sparse is not None and other.sparse is not None:
        assert run.sparse.stats() == other.sparse.stats()


@pytest.mark.parametrize("method", METHODS)
def test_every_method_continues_bit_for_bit(method: str, tmp_path: Path) -> None:
    assert_continues(tmp_path, method=method)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize(
    "method", ["dense", "DSR"]
)  # budgets move: lengths differ from those of a fresh model
def test_every_optimizer_continues_bit_for_bit(optimizer: str, method: str, tmp_path: Path) -> None:
    assert_continues(tmp_path, method=method, optimizer=optimizer)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_every_schedule_continues_bit_for_bit(schedule: str, tmp_path: Path) -> None:
    assert_continues(tmp_path, schedule=schedule)


@pytest.mark.parametrize("method", ["Top-KAST", "Top-KAST, random", "SET", "DSR"])
def test_an_implicit_reservoir_continues_bit_for_bit(method: str, tmp_path: Path) -> None:
    assert_continues(tmp_path, method=method, reservoir="implicit")


def test_a_run_without_its_generators_would_go_another_way(tmp_path: Path) -> None:
    run = Run.build(0)
    run.train(0, 7)
    saved = run.take(7)
    checkpoint.write(tmp_path, saved)
    read = restart.latest(tmp_path).snapshot
    assert read is not None
    run.train(7, 10)
    other = Run.build(1)
    for name, part in other.parts.items():
        part.load_state_dict(read.parts[name]["state"])
    other.train(7, 10)
    assert other.losses != run.losses[7:]


def test_a_snapshot_may_be_restored_twice(tmp_path: Path) -> None:
    run = Run.build(0)
    run.train(0, 5)
    checkpoint.write(tmp_path, run.take(5))
    saved = restart.latest(tmp_path).snapshot
    assert saved is not None
    first, second = Run.build(1), Run.build(2)
    first.restore(saved)
    first.train(5, 9)
    second.restore(saved)
    second.train(5, 9)
    assert_same(first.everything(), second.everything())


def test_versions_of_modules_are_kept() -> None:
    saved = Run.build(0, method="dense").take(0)
    assert saved.parts["model"]["metadata"]["norm"] == {"version": 2}


def test_other_parts_are_refused_by_name() -> None:
    run = Run.build(0)
    saved = run.take(0)
    with pytest.raises(
        ValueError, match=r"the snapshot has the parts \['model', 'optimizer', 'schedule'\], got \['model'\]"
    ):
        snapshot.restore(saved, {"model": run.model}, generators={"batches": run.batches})
    with pytest.raises(ValueError, match=r"has the generators \['batches'\], got \[\]; give the same names"):
        snapshot.restore(saved, run.parts)


@pytest.mark.parametrize(
    ("other", "message"),
    [
        ({"method": "Static"}, "the state of 'model' does not fit: .*layer 'embedding'.*; build the run with the"),
        ({"method": "dense"}, "the state of 'model' does not fit"),
        ({"optimizer": "SGD"}, "the state of 'optimizer' does not fit: it is that of a AdamW, got a SGD; build the run"),
    ],
)  # fmt: skip
def test_a_state_that_does_not_fit_is_refused(other: dict[str, str], message: str) -> None:
    run = Run.build(0)
    run.train(0, 3)
    saved = run.take(3)
    with pytest.raises(ValueError, match=message):
        Run.build(0, **other).restore(saved)


def test_something_unknown_is_refused_by_its_path(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match=r"snapshot/kept/where is a pathlib.*Path"):
        checkpoint.write(tmp_path, snapshot.take(1, {}, kept={"where": tmp_path}))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"parts": {"model": 1, "optimizer": {}, "schedule": []}}, "the state of 'model' does not fit"),
        ({"generators": {"batches": 3}}, "the random number generators of step 3 do not fit"),
        ({"rng": {}}, "the random number generators of step 3 do not fit"),
        ({"rng": {"python": (3, 4, 5)}}, "the random number generators of step 3 do not fit"),
    ],
)
def test_a_made_up_snapshot_is_refused(change: dict[str, Any], message: str) -> None:
    run = Run.build(0)
    run.train(0, 3)
    with pytest.raises(ValueError, match=message):
        run.restore(replace(run.take(3), **change))
