"""A run that is written, read into freshly built objects and continued equals the one that never stopped."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from store.small_run import METHODS, OPTIMIZERS, SCHEDULES, Run, assert_same
from topkast.store import checkpoint, snapshot
from topkast.store.snapshot import rng_state, set_rng_state

pytestmark = pytest.mark.usefixtures("one_thread")


def group(parts: dict[str, Any]) -> dict[str, Any]:
    return parts["optimizer"]["state"]["param_groups"][0]


def first(parts: dict[str, Any]) -> dict[str, Any]:
    return parts["optimizer"]["state"]["state"][0]


def drop(data: dict[Any, Any], key: Any) -> None:
    del data[key]


FORGED: dict[str, tuple[Callable[[dict[str, Any]], Any], str]] = {
    "a rate that is text": (lambda p: group(p).update(lr="x"), r"'optimizer' .*param_groups\[0\]\['lr'\] must be a number .*, got 'x'"),
    "a rate that is a truth": (lambda p: group(p).update(lr=True), r"'optimizer' .*\['lr'\] must be a number .*, got True"),
    "a rate that is nothing": (lambda p: group(p).update(lr=None), r"'optimizer' .*\['lr'\] must be a number .*, got None"),
    "a rate below zero": (lambda p: group(p).update(lr=-1.0), r"'optimizer' .*\['lr'\] must be at least 0, got -1.0"),
    "a rate beyond floats": (lambda p: group(p).update(lr=10**400), r"'optimizer' .*\['lr'\] must be a number that a float32 can hold, got a number of 1,329 bits"),
    "a rate beyond float32": (lambda p: group(p).update(lr=1e300), r"'optimizer' .*\['lr'\] must be a number that a float32 can hold, got 1e\+300"),
    "a rate that is infinite": (lambda p: group(p).update(lr=math.inf), r"'optimizer' .*\['lr'\] must be a number that a float32 can hold, got inf"),
    "a rate that is not a number": (lambda p: group(p).update(lr=math.nan), r"'optimizer' .*\['lr'\] must be a number that a float32 can hold, got nan"),
    "no rate": (lambda p: drop(group(p), "lr"), r"'optimizer' .*param_groups\[0\] has no 'lr'"),
    "betas of one": (lambda p: group(p).update(betas=(0.9, 1.0)), r"'optimizer' .*\['betas'\] must be below 1"),
    "betas as text": (lambda p: group(p).update(betas=("0.9", 0.9)), r"'optimizer' .*\['betas'\]\[0\] must be a number"),
    "three betas": (lambda p: group(p).update(betas=(0.9, 0.9, 0.9)), r"'optimizer' .*\['betas'\] must be 2 long"),
    "another variant": (lambda p: group(p).update(amsgrad=True), r"'optimizer' .*\['amsgrad'\] must be False, got True"),
    "another implementation": (lambda p: group(p).update(capturable=True), r"'optimizer' .*\['capturable'\] must be False, got True"),
    "other parameters": (lambda p: group(p)["params"].reverse(), r"'optimizer' .*\['params'\] must be \[0, 1, 2"),
    "a true parameter": (lambda p: group(p)["params"].__setitem__(1, True), r"'optimizer' .*\['params'\] must be \[0, 1, 2"),
    "no groups": (lambda p: p["optimizer"]["state"].update(param_groups=[]), r"'optimizer' .*param_groups must be a list of 1"),
    "state by name": (lambda p: p["optimizer"]["state"]["state"].update(x={}), r"'optimizer' .*state must be by number of parameter, got 'x'"),
    "state of none": (lambda p: p["optimizer"]["state"]["state"].update({99: {}}), r"'optimizer' .*state must be by number of parameter, got 99"),
    "a state that is a list": (lambda p: p["optimizer"]["state"].update(state=[]), r"'optimizer' .*state must be a dict, got a list"),
    "half a state": (lambda p: drop(first(p), "exp_avg_sq"), r"'optimizer' .*state\[0\] has no 'exp_avg_sq'"),
    "a state of another shape": (lambda p: first(p).update(exp_avg=torch.zeros(3)), r"'optimizer' .*\['exp_avg'\] must be one number, or of shape \(96,\), got \(3,\)"),
    "a state that is text": (lambda p: first(p).update(exp_avg="x"), r"'optimizer' .*\['exp_avg'\] must be a number"),
    "a state that is one number": (lambda p: first(p).update(exp_avg=torch.zeros(())), r"'optimizer' .*\['exp_avg'\] must be a tensor shaped like the parameter"),
    "a count below zero": (lambda p: first(p).update(step=torch.tensor(-1.0)), r"'optimizer' .*\['step'\] must be at least 0"),
    "other sets": (lambda p: group(p).update(topkast=[tag and tag ^ 1 for tag in group(p)["topkast"]]), r"'optimizer' .*saved with other sets than the model has"),
    "no sets": (lambda p: drop(group(p), "topkast"), r"'optimizer' .*saved with other sets than the model has"),
    "an epoch that is text": (lambda p: p["schedule"]["state"].update(last_epoch="x"), r"'schedule' .*it\['last_epoch'\] must be a number"),
    "no epoch": (lambda p: drop(p["schedule"]["state"], "last_epoch"), r"'schedule' .*it has no 'last_epoch'"),
    "no rates": (lambda p: p["schedule"]["state"].update(base_lrs=[]), r"'schedule' .*it\['base_lrs'\] must be 1 long"),
    "a schedule that is a list": (lambda p: p["schedule"].update(state=[1]), r"'schedule' .*it must be a dict, got a list"),
    "a version that is text": (lambda p: p["model"]["metadata"]["norm"].update(version="x"), r"'model' .*the version of module 'norm' must be a whole number"),
    "versions that are a list": (lambda p: p["model"].update(metadata=[]), r"'model' .*metadata must be a dict of dicts"),
    "a model that is a list": (lambda p: p["model"].update(state=[1]), r"'model' .*must be a dict by name"),
    "a model by number": (lambda p: p["model"]["state"].update({1: 2}), r"'model' .*must be a dict by name"),
    "a bias of another shape": (lambda p: p["model"]["state"].update({"mid.bias": torch.zeros(2)}), r"'model' does not fit: Error.*\n\tsize mismatch for mid.bias"),
    "a part without its type": (lambda p: drop(p["model"], "type"), r"'model' .*expected its type, state and metadata"),
    "a part that is a number": (lambda p: p.update(model=3), r"'model' .*expected its type, state and metadata"),
}  # fmt: skip


@pytest.mark.parametrize("case", FORGED)
def test_a_forged_state_with_the_right_digests_is_refused(case: str, tmp_path: Path) -> None:
    run = Run.build(0)
    run.train(0, 4)
    checkpoint.write(tmp_path, run.take(4))
    saved = checkpoint.latest(tmp_path).snapshot
    assert saved is not None
    alter, message = FORGED[case]
    alter(saved.parts)
    checkpoint.write(tmp_path, saved)  # with its true digests
    forged = checkpoint.latest(tmp_path)
    assert forged.damaged == {}
    assert forged.snapshot is not None
    with pytest.raises(ValueError, match=rf"the state of {message}"):
        Run.build(1).restore(forged.snapshot)


@pytest.mark.parametrize(
    ("name", "value"),
    [("python", (3, torch.zeros(625, dtype=torch.int64), "x")), ("python", 5), ("torch", torch.zeros(3)), ("numpy", {})],
)  # fmt: skip
def test_forged_generators_are_refused(name: str, value: Any, tmp_path: Path) -> None:
    run = Run.build(0)
    saved = run.take(0)
    saved.rng[name] = value
    checkpoint.write(tmp_path, saved)
    forged = checkpoint.latest(tmp_path).snapshot
    assert forged is not None
    before = rng_state()
    with pytest.raises(ValueError, match="the random number generators of step 0 do not fit"):
        run.restore(forged)
    set_rng_state(before)


def assert_continues(tmp_path: Path, **options: Any) -> None:
    run = Run.build(0, **options)
    run.train(0, 7)  # between two refreshes
    checkpoint.write(tmp_path, run.take(7))
    there = checkpoint.latest(tmp_path)
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
    read = checkpoint.latest(tmp_path).snapshot
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
    saved = checkpoint.latest(tmp_path).snapshot
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
