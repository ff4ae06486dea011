"""Runs that go on: for longer than they were to, from the weights of another, until they stop to improve."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from store.raw_record import read_lines
from topkast.cli.main import main
from topkast.methods.named import METHODS, OPTIONS
from topkast.report import write_report
from topkast.report.summary import settings
from topkast.store.record import read_run
from topkast.train import job, trained
from topkast.train.config import Config, read_config, read_run_config
from topkast.train.display import Quiet
from topkast.train.extension import check_extensions, first_length, length_at
from topkast.train.references import reference
from topkast.train.resolve import make_method, make_schedule, make_task
from topkast.train.trainer import Trainer

pytestmark = pytest.mark.usefixtures("one_thread")
OLD = Path(__file__).parents[1] / "formats" / "0.1.0"


class Told(Quiet):
    """Keeps what it was told."""

    def __init__(self) -> None:
        self.notes: list[str] = []

    def note(self, text: str) -> None:
        self.notes.append(text)


class Crash(BaseException):
    """Ends a run without a word."""


def small(path: Path, **values: dict[str, Any]) -> Config:
    settings = {
        "data": {"data": str(path)},
        "model": {"width": 16, "depth": 1, "heads": 2, "window": 8, **values.pop("model", {})},
        "method": {"engine": "masked", **values.pop("method", {})},
        "train": {"steps": 20, "batch": 2, "threads": 1, **values.pop("train", {})},
        "run": {"reference": ["none"], "evaluate_every": 2, "checkpoint_every": 5, **values.pop("run", {})},
    }
    return Config().with_values(settings)


def progress(folder: Path) -> list[dict[str, Any]]:
    lines = [line for line in read_lines(folder / "metrics.jsonl") if line["event"] == "progress"]
    return [{name: value for name, value in line.items() if name != "seconds"} for line in lines]


def events(folder: Path) -> list[str]:
    return [line["event"] for line in read_lines(folder / "metrics.jsonl")]


def longer(folder: Path, steps: int) -> Told:
    display = Told()
    assert job.resume(folder, display, changes={"train": {"steps": steps}}).is_finished
    return display


# ---- longer ----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def extended_run(text_file: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Any], Told]:
    """A run of 20 steps, its record then, extended to 40."""
    folder = tmp_path_factory.mktemp("runs") / "run"
    job.start(small(text_file, run={"reference": ["dense"]}), folder, Quiet())
    before = progress(folder)
    return folder, before, longer(folder, 40)


def test_what_was_trained_stays_and_rates_go_by_the_new_length(
    extended_run: tuple[Path, list[Any], Told],
) -> None:
    folder, before, _ = extended_run
    after = progress(folder)
    assert after[: len(before) - 1] == before[:-1]
    # At the last step of the old run the rate was that of the step to come, which is another now.
    rates = {line["step"]: line["lr"] for line in after}
    full = rates[2] / (0.5 * (1 + math.cos(math.pi * 1 / 19)))  # a warm-up of one step
    for step in (24, 30, 38):
        assert rates[step] == pytest.approx(full * 0.5 * (1 + math.cos(math.pi * (step - 1) / 39)))
    assert rates[40] == pytest.approx(0)


def test_the_record_is_that_of_one_longer_run_with_references_of_its_length(
    extended_run: tuple[Path, list[Any], Told],
) -> None:
    folder, _, display = extended_run
    assert events(folder) == [
        "start",
        *["progress"] * 10,
        "extension",
        *["progress"] * 10,
        "end",
        "reference",
    ]
    run = read_run(folder)
    assert (run.steps, run.last.step, run.references["dense"].steps) == (40, 40, 40)
    assert "extended at step 20 from 20 to 40 steps: the cosine schedule" in display.notes[0]
    assert "keep their steps" in display.notes[0]
    assert ("train", "extended", "20, 20") in settings(run)
    assert "extended" in write_report(run).read_text()


def test_its_options_repeat_an_extended_run(
    extended_run: tuple[Path, list[Any], Told], tmp_path: Path
) -> None:
    folder, _, _ = extended_run
    job.start(read_config(folder / "config.toml"), tmp_path / "again", Quiet())
    ours, theirs = progress(tmp_path / "again"), progress(folder)
    assert [line for line in ours if line["step"] != 20] == [line for line in theirs if line["step"] != 20]


@pytest.mark.parametrize("step", [20, 23, 33])
def test_an_extended_run_that_crashed_goes_on_bit_for_bit(
    extended_run: tuple[Path, list[Any], Told],
    step: int,
    text_file: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    folder = tmp_path / "cut"
    job.start(small(text_file, run={"reference": ["dense"]}), folder, Quiet())
    take_step = Trainer.take_step

    def crash_at(trainer: Trainer) -> float:
        if trainer.step == step:
            raise Crash
        return take_step(trainer)

    monkeypatch.setattr(Trainer, "take_step", crash_at)
    with pytest.raises(Crash):
        longer(folder, 40)
    monkeypatch.setattr(Trainer, "take_step", take_step)
    assert job.resume(folder, Quiet()).is_finished
    assert progress(folder) == progress(extended_run[0])
    assert events(folder) == events(extended_run[0])


def test_a_crash_between_new_options_and_new_checkpoint_is_mended(
    extended_run: tuple[Path, list[Any], Told], text_file: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "cut"
    job.start(small(text_file, run={"reference": ["dense"]}), folder, Quiet())
    shutil.copy(extended_run[0] / "config.toml", folder)
    assert job.resume(folder, Quiet()).is_finished
    assert events(folder) == events(extended_run[0])
    assert progress(folder) == progress(extended_run[0])


def test_a_run_may_be_extended_twice_and_before_its_end(text_file: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    job.start(small(text_file, train={"steps": 10, "minutes": 0.0}), folder, Quiet())  # stops after a step
    job.resume(folder, Quiet(), changes={"train": {"steps": 14, "minutes": 9.0}})
    longer(folder, 16)
    config = read_run_config(folder / "config.toml")
    assert config.train.extended == (1, 10, 14, 14)
    assert [length_at(config, step) for step in (0, 1, 13, 14)] == [10, 14, 14, 16]
    assert first_length(config) == 10
    assert progress(folder)[-1]["step"] == 16


def test_annealing_and_the_methods_schedule_keep_their_steps(text_file: Path, tmp_path: Path) -> None:
    for name, method in {
        "annealed": {"anneal": "linear", "anneal_until": 0.5, "exchange_every": 2},
        "rigl": {"method": "rigl", "refresh_every": 4},
    }.items():
        folder = tmp_path / name
        job.start(small(text_file, method=method), folder, Quiet())
        before = make_method(read_run_config(folder / "config.toml"))
        longer(folder, 40)
        assert make_method(read_run_config(folder / "config.toml")) == before


def test_what_extends_nothing_is_refused(text_file: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    job.start(small(text_file), folder, Quiet())
    text = (folder / "config.toml").read_text()
    with pytest.raises(ValueError, match="--steps must exceed the 20 steps of the run to extend it, got 20"):
        longer(folder, 20)
    assert (folder / "config.toml").read_text() == text
    for wrong in ([20], [20, 40], [30, 20], [5, 8, 4, 9]):
        with pytest.raises(ValueError, match="train.extended must be pairs"):
            check_extensions(small(text_file, train={"steps": 30, "extended": wrong}))


def test_a_finished_run_says_so_and_how_to_extend_it(
    text_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "run"
    job.start(small(text_file), folder, Quiet())
    assert main(["train", "--resume", str(folder), "--no-report"]) == 0
    out = capsys.readouterr().out
    assert "is finished, with all of its 20 steps; to extend it: topkast train --resume" in out
    assert "--steps 40" in out
    assert "loss" not in out
    assert main(["train", "--resume", str(folder), "--lr", "1", "--out", "x"]) == 2
    error = capsys.readouterr().err
    assert "--resume takes everything from the run but --steps, --minutes, --patience, --reference" in error
    assert "leave out --lr, --out" in error


def test_a_run_of_version_0_1_can_be_extended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(OLD / "run", tmp_path / "run")
    shutil.copy(OLD / "text.txt", tmp_path)
    monkeypatch.chdir(tmp_path)
    longer(Path("run"), 18)
    run = read_run(tmp_path / "run")
    assert (run.steps, run.last.step) == (18, 18)


def test_drops_and_lines_are_stretched_too(text_file: Path) -> None:
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    for schedule, wanted in {"drops": (0.1, 1.0), "linear": (0.5, 0.75), "constant": (1.0, 1.0)}.items():
        values = {"steps": 200, "extended": [50, 100], "schedule": schedule, "drops": [0.4], "lr": 1.0}
        config = small(text_file, train={**values, "warmup": 0.0})
        factor = make_schedule(config, optimizer).lr_lambdas[0]
        assert (factor(49), factor(50)) == pytest.approx(wanted, abs=0.02), schedule


# ---- every value -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [name for name in METHODS if name != "dense"])
def test_a_run_writes_every_value_of_its_method(name: str, text_file: Path, tmp_path: Path) -> None:
    with pytest.raises(Crash):
        job.start(small(text_file, method={"method": name}, train={"steps": 150}), tmp_path / "run", Stop())
    options = read_run_config(tmp_path / "run" / "config.toml").method
    never = {
        "anneal",
        "anneal_from",
        "anneal_until",
        *({"t_end"} if name in ("topkast", "l0", "variational-dropout") else ()),
    }
    for option in set(METHODS[name].takes) - never:
        assert getattr(options, option) is not None, option
    assert [o for o in OPTIONS if getattr(options, o) is not None and o not in METHODS[name].takes] == []


class Stop(Quiet):
    """Ends a run after its first step."""

    def step(self, step: int, loss: float) -> None:
        raise Crash


# ---- from the weights of another ---------------------------------------------------------------------------


def test_a_run_starts_from_anothers_weights_and_sets(text_file: Path, tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    job.start(small(text_file, train={"lr": 0.01}), first, Quiet())
    assert main(["train", "--from", str(first), "--out", str(second), "--lr", "0", "--quiet"]) == 0
    ours, theirs = trained.load(first), trained.load(second)
    assert (theirs.config.train.lr, theirs.config.model.width, theirs.step) == (0.0, 16, 20)
    assert theirs.config.run.weights_from == str(first)
    assert ours.sparse is not None
    assert theirs.sparse is not None
    for name, weight in ours.sparse.weights.items():
        assert torch.equal(weight.forward_mask(), theirs.sparse.weights[name].forward_mask())
        assert torch.allclose(weight.alpha(), theirs.sparse.weights[name].alpha())
        assert theirs.sparse.weights[name].steps == 20
    assert progress(second)[0]["quality"] == pytest.approx(progress(first)[-1]["quality"], rel=1e-4)


def test_a_run_from_another_that_was_killed_at_once_starts_there_again(
    text_file: Path, tmp_path: Path
) -> None:
    job.start(small(text_file), tmp_path / "first", Quiet())
    config = small(text_file, run={"weights_from": str(tmp_path / "first")})
    job.start(config, tmp_path / "whole", Quiet())
    with pytest.raises(Crash):
        job.start(config, tmp_path / "cut", Stop())
    assert job.resume(tmp_path / "cut", Quiet()).is_finished
    assert progress(tmp_path / "cut") == progress(tmp_path / "whole")


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--width", "32"], "its network is another (--width is 16 there and 32 here)"),
        (["--forward-sparsity", "0.8"], "its weights do not fit, use its method and sparsities"),
    ],
)
def test_weights_that_do_not_fit_are_refused(
    flags: list[str], message: str, text_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    job.start(small(text_file), tmp_path / "first", Quiet())
    assert main(["train", "--from", str(tmp_path / "first"), "--out", str(tmp_path / "new"), *flags]) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "new").exists()
    assert main(["train", "--from", str(tmp_path), "--out", str(tmp_path / "new")]) == 2
    assert "is not a run folder" in capsys.readouterr().err


# ---- until it stops to improve -----------------------------------------------------------------------------


def test_references_take_all_steps_however_patient_the_run_is(text_file: Path) -> None:
    config = small(text_file, train={"patience": 1, "lr": 0.01})
    task = make_task(config)
    for name in ("static", "dense", "small"):
        other, _ = reference(config, task, name, 1000)
        assert (other.train.patience, other.train.steps) == (None, 20)


def test_a_run_stops_when_its_quality_no_longer_improves(text_file: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    config = small(text_file, train={"steps": 400, "lr": 0.0, "patience": 3})
    outcome = job.start(config, folder, Quiet())
    assert (outcome.is_finished, outcome.exit_code) == (False, 0)
    run = read_run(folder)
    assert run.last.step == 8  # the first evaluation is the best, then three that are no better
    assert run.end is not None
    assert run.end.stopped == "its quality was no better for 3 evaluations"
    job.resume(folder, Quiet())
    assert read_run(folder).last.step == 14
    job.resume(folder, Quiet(), changes={"train": {"patience": 5}})
    assert json.loads((folder / "metrics.jsonl").read_text().splitlines()[-1])["step"] == 24
