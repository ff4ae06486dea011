"""Whole jobs: folders, references, interruptions, and going on as if nothing had happened."""

from __future__ import annotations

import copy
import json
import math
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from store.raw_record import read_lines
from store.test_checkpoint_files import forge_file
from topkast.report import write_report
from topkast.store import checkpoint
from topkast.store.record import read_run
from topkast.train import job, session, trained
from topkast.train.config import Config, read_config
from topkast.train.display import Quiet
from topkast.train.session import Stopped
from topkast.train.trainer import Trainer

pytestmark = pytest.mark.usefixtures("one_thread")


def small(path: Path, **values: dict[str, Any]) -> Config:
    settings = {
        "data": {"data": str(path)},
        "model": {"width": 16, "depth": 1, "heads": 2, "window": 8},
        "method": {"engine": "masked", "refresh_every": 2, **values.pop("method", {})},
        "train": {"steps": 20, "batch": 2, "threads": 1, **values.pop("train", {})},
        "run": {"reference": ["none"], "evaluate_every": 4, "checkpoint_every": 3, **values.pop("run", {})},
    }
    return Config().with_values(settings)


def record(folder: Path) -> list[dict[str, Any]]:
    """The lines of a run without what two runs never share: times and memory."""
    lines = read_lines(folder / "metrics.jsonl")

    def timeless(value: Any) -> Any:
        if isinstance(value, dict):
            hidden = ("seconds", "seconds_per_step", "peak_rss")
            return {k: timeless(v) for k, v in value.items() if k not in hidden}
        return [timeless(v) for v in value] if isinstance(value, list) else value

    for line in lines:
        if line["event"] == "reference":
            line["curve"] = [[row[0], *row[2:]] for row in line["curve"]]
    return [timeless(line) for line in lines]


def test_a_job_leaves_its_record_configuration_and_checkpoints(text_file: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    config = small(text_file, run={"reference": ["static", "dense"]})
    outcome = job.start(config, out, Quiet())
    assert outcome.is_finished
    lines = record(out)
    assert [line["event"] for line in lines] == ["start", *["progress"] * 5, "end", "reference", "reference"]
    assert lines[0]["run"] == "Top-KAST 90/80 %"
    run = read_run(out)
    assert [run.name, *run.references] == ["Top-KAST 90/80 %", "fixed random mask 90 %", "dense"]
    assert lines[-1]["parameters"] > 5 * lines[0]["parameters"]["used"] / 2
    again = tmp_path / "again"
    job.start(read_config(out / "config.toml"), again, Quiet())
    assert record(again) == lines


def test_an_annealed_run_records_its_sizes_and_has_references_of_the_final_one(
    text_file: Path, tmp_path: Path
) -> None:
    annealed = {"anneal": "linear", "anneal_from": 0.3, "anneal_until": 0.5, "exchange_every": 4}
    config = small(text_file, run={"reference": ["static"]}, method=annealed)
    job.start(config, tmp_path / "run", Quiet())
    run = read_run(tmp_path / "run")
    name, layer = next(iter(run.layers.items()))
    sizes = [point.layers[name].forward for point in run.points]
    assert layer.forward == round(0.7 * layer.numel)
    assert sizes[-1] == round(0.1 * layer.numel)
    assert sizes == sorted(sizes, reverse=True)
    assert run.name == "Top-KAST 90/80 % (annealed)"
    assert run.used == pytest.approx(run.references["fixed random mask 90 %"].parameters, rel=0.01)
    assert run.flops_in_step < run.flops_per_step["sparse"]
    assert 'anneal = "linear"' in (tmp_path / "run/config.toml").read_text()
    assert "How dense the sets are" in write_report(run).read_text()


class Crash(BaseException):
    """Ends a run without a word, like a kill that Python survives."""


@pytest.mark.parametrize(
    "method",
    [
        {},
        {"anneal": "cubic", "exchange_every": 4},
        {"method": "rigl", "t_end": 15},
        {"method": "dsr"},
        {"method": "dense", "refresh_every": None},
    ],
)
@pytest.mark.parametrize("step", [1, 4, 10, 19])
def test_a_run_that_crashed_goes_on_bit_for_bit(
    method: dict[str, Any], step: int, text_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = small(text_file)
    kept = {k: v for k, v in method.items() if v is not None}
    values = {"engine": "masked", **({} if "refresh_every" in method else {"refresh_every": 2}), **kept}
    config = Config(
        config.data, config.model, Config().with_values({"method": values}).method, config.train, config.run
    )
    job.start(config, tmp_path / "whole", Quiet())
    take_step = Trainer.take_step

    def crash_at(trainer: Trainer) -> float:
        if trainer.step == step:
            raise Crash
        return take_step(trainer)

    monkeypatch.setattr(Trainer, "take_step", crash_at)
    with pytest.raises(Crash):
        job.start(config, tmp_path / "cut", Quiet())
    monkeypatch.setattr(Trainer, "take_step", take_step)
    assert job.resume(tmp_path / "cut", Quiet()).is_finished
    assert record(tmp_path / "cut") == record(tmp_path / "whole")


def test_a_run_that_crashed_while_a_reference_was_trained_goes_on(
    text_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = small(text_file, run={"reference": ["static", "dense"]})
    job.start(config, tmp_path / "whole", Quiet())
    run = session.Session.run

    def crash(self: session.Session, *arguments: Any) -> bool:
        if self.name == "dense":
            raise Crash
        return run(self, *arguments)

    monkeypatch.setattr(session.Session, "run", crash)
    with pytest.raises(Crash):
        job.start(config, tmp_path / "cut", Quiet())
    monkeypatch.setattr(session.Session, "run", run)
    assert job.resume(tmp_path / "cut", Quiet()).is_finished
    assert record(tmp_path / "cut") == record(tmp_path / "whole")


def test_a_run_whose_configuration_was_emptied_or_cut_is_not_resumed(text_file: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    job.start(small(text_file), out, Quiet())
    path = out / "config.toml"
    whole, before = path.read_bytes(), record(out)
    path.write_bytes(b"")
    message = (
        r"config.toml is empty: it lacks format, data.task, .*run.tensorboard; put the file back from a copy, "
        "or start a new run: checkpoints do not hold the options"
    )
    for use in (lambda: job.resume(out, Quiet()), lambda: trained.load(out)):
        with pytest.raises(ValueError, match=message):
            use()
    for length in range(len(whole) - 1):  # without its last line end it is still whole
        path.write_bytes(whole[:length])
        with pytest.raises(ValueError, match=r"config.toml .*; put the file back from a copy"):
            job.resume(out, Quiet())
    path.write_bytes(whole[: whole.index(b"[run]")])
    with pytest.raises(
        ValueError, match=r"was cut or altered: it lacks run.evaluate_every, .*; put the file"
    ):
        job.resume(out, Quiet())
    path.unlink()
    with pytest.raises(ValueError, match=r"config.toml is missing; put the file back from a copy"):
        job.resume(out, Quiet())
    assert record(out) == before
    path.write_bytes(whole)
    assert job.resume(out, Quiet()).is_finished


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("metrics", "x", r"`metrics` must be a whole number, got 'x'"),
        ("metrics", True, r"`metrics` must be a whole number, got True"),
        ("metrics", 10**400, r"the checkpoint was taken at the end of a line"),
        ("metrics", -1, r"the checkpoint was taken at the end of a line"),
        ("seconds", "x", r"`seconds` must be a finite number, at least 0, got 'x'"),
        ("seconds", 10**400, r"`seconds` must be a finite number, at least 0, got a number of 1,329 bits"),
        ("flops", float("inf"), r"`flops` must be a finite number, at least 0, got inf"),
        ("losses", 3, r"`losses` must be a list of numbers, got 3"),
        ("losses", ["x"], r"`losses` must be a list of numbers, got a list"),
        ("quality", "good", r"`quality` must be a number or nothing, got 'good'"),
        ("has_ended", 1, r"`has_ended` must be true or false, got 1"),
        ("references", [1], r"`references` must be a list of names, got a list"),
        ("more", 1, r"it keeps 'more', which is not known"),
    ],
)
def test_a_forged_record_of_a_run_is_refused_with_the_checkpoint(
    name: str, value: Any, message: str, text_file: Path, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    job.start(small(text_file), out, Quiet())
    saved = checkpoint.latest(out).snapshot
    assert saved is not None
    saved.kept[name] = value
    path = checkpoint.write(out, saved)
    with pytest.raises(
        ValueError, match=rf"the checkpoint .*{path.name} cannot be used: .*{message}"
    ) as caught:
        job.resume(out, Quiet())
    assert str(caught.value).endswith("Without it, the run goes on from the one before")
    if name == "quality":
        with pytest.raises(ValueError, match=r"of step 20 in .*run cannot be used: its quality is no number"):
            trained.load(out)
    shutil.rmtree(path)
    assert job.resume(out, Quiet()).is_finished


EVIL: list[Any] = [
    None,
    "x",
    "../../etc",
    -1,
    True,
    1e308,
    math.nan,
    2**70,
    10**400,
    [],
    {"dict": []},
    {"a": 1},
]


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Every place in nested data, as the keys that lead there."""
    yield path
    if isinstance(value, dict | list):
        for key in value if isinstance(value, dict) else range(len(value)):
            yield from places(value[key], (*path, key))


def test_any_alteration_of_a_state_is_harmless_or_refused(text_file: Path, tmp_path: Path) -> None:
    pristine = tmp_path / "pristine"
    job.start(small(text_file, train={"steps": 6}), pristine, Quiet())
    shutil.rmtree(pristine / "checkpoints" / "step-00000006")
    state = json.loads((pristine / "checkpoints" / "step-00000003" / "state.json").read_bytes())
    chance = random.Random(0)
    for number, path in enumerate(chance.sample(list(places(state)), 40)):
        run = tmp_path / str(number)
        shutil.copytree(pristine, run)
        forged = copy.deepcopy({"": state})
        holder: Any = forged
        for key in (keys := ("", *path))[:-1]:
            holder = holder[key]
        holder[keys[-1]] = chance.choice(EVIL)
        forge_file(run / "checkpoints" / "step-00000003", "state.json", json.dumps(forged[""]).encode())
        try:
            assert job.resume(run, Quiet()).is_finished
        except ValueError as error:
            assert "step-00000003 cannot be used" in str(error)


def test_a_finished_run_resumed_changes_nothing(text_file: Path, tmp_path: Path) -> None:
    job.start(small(text_file), tmp_path / "run", Quiet())
    before = record(tmp_path / "run")
    assert job.resume(tmp_path / "run", Quiet()).is_finished
    assert record(tmp_path / "run") == before


def test_a_damaged_newest_checkpoint_is_passed_over(
    text_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    job.start(small(text_file), tmp_path / "run", Quiet())
    before = record(tmp_path / "run")
    newest = max((tmp_path / "run" / "checkpoints").iterdir())
    tensors = newest / "tensors.safetensors"
    content = bytearray(tensors.read_bytes())
    content[len(content) // 2] ^= 1
    tensors.write_bytes(content)
    assert job.resume(tmp_path / "run", Quiet()).is_finished
    assert f"checkpoint {newest.name} is damaged and passed over" in capsys.readouterr().err
    assert record(tmp_path / "run") == before


def test_what_is_not_finite_stops_with_a_way_out(
    text_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from topkast.train.text_tasks import TextTask

    loss = TextTask.loss
    monkeypatch.setattr(
        TextTask,
        "loss",
        lambda self, model, step, batches: (
            loss(self, model, step, batches)
            * (float("nan") if batches.get_state()[-1] >= 0 and counter() > 7 else 1.0)
        ),
    )
    calls = [0]

    def counter() -> int:
        calls[0] += 1
        return calls[0]

    with pytest.raises(
        Stopped,
        match=r"the loss of step 8 is nan; the step was not taken. The last good checkpoint is .*step-00000006",
    ):
        job.start(small(text_file), tmp_path / "run", Quiet())
    assert record(tmp_path / "run")[-1]["stopped"] == "the loss of step 8 is nan"


def test_a_run_out_of_time_says_so_and_goes_on_as_if_nothing_had_happened(
    text_file: Path, tmp_path: Path
) -> None:
    config = small(text_file, train={"minutes": 0.0})
    outcome = job.start(config, tmp_path / "run", Quiet())
    assert (outcome.is_finished, outcome.exit_code) == (False, 0)
    lines = record(tmp_path / "run")
    assert [line["event"] for line in lines] == ["start", "progress", "end"]
    assert (lines[-1]["stopped"], lines[-1]["step"]) == ("its time was over", 1)
    held = read_run(tmp_path / "run").bytes
    assert held is not None
    assert held.sparse > 0
    file = tmp_path / "run" / "config.toml"
    file.write_text(file.read_text().replace("minutes = 0.0", "minutes = 100.0"))
    assert job.resume(tmp_path / "run", Quiet()).is_finished
    job.start(small(text_file), tmp_path / "whole", Quiet())
    assert record(tmp_path / "run") == record(tmp_path / "whole")


def test_tensorboard_shows_what_the_record_says(text_file: Path, tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason="the extra `tensorboard` is not installed")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    run = tmp_path / "run"
    job.start(small(text_file, run={"tensorboard": True}), run, Quiet())
    shown = EventAccumulator(str(run / "tensorboard"))
    shown.Reload()
    points = [line for line in record(run) if line["event"] == "progress"]
    for tag, key in [("train/loss", "loss"), ("eval/bits_per_byte", "quality")]:
        scalars = [(scalar.step, scalar.value) for scalar in shown.Scalars(tag)]
        assert scalars == [(point["step"], pytest.approx(point[key])) for point in points]
    assert shown.Scalars("topkast/blocks.0.up/forward")[-1].value == 102


def command(text_file: Path, out: Path, steps: int) -> list[str]:
    options = {
        "data": text_file,
        "out": out,
        "steps": steps,
        "width": 16,
        "depth": 1,
        "heads": 2,
        "window": 8,
    }
    options |= {
        "batch": 2,
        "threads": 1,
        "reference": "none",
        "checkpoint-every": 5,
        "evaluate-every": 5,
        "engine": "masked",
    }
    return [sys.executable, "-m", "topkast", "train", "--quiet", *(f"--{k}={v}" for k, v in options.items())]


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_with_a_checkpoint_and_says_how_to_go_on(
    number: int, code: int, text_file: Path, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    process = subprocess.Popen(command(text_file, out, 100_000), stdout=subprocess.PIPE, text=True)
    while not list(out.glob("checkpoints/step-*/manifest.json")):
        assert process.poll() is None
        time.sleep(0.05)
    process.send_signal(number)
    printed, _ = process.communicate(timeout=60)
    assert process.returncode == code
    assert f"topkast train --resume {out}" in printed
    steps = [json.loads(p.read_text())["step"] for p in out.glob("checkpoints/step-*/manifest.json")]
    last = record(out)[-1]
    assert (last["stopped"], last["step"]) == (f"{signal.Signals(number).name} came", max(steps))


@pytest.mark.slow
def test_fifty_kills_lose_nothing(text_file: Path, tmp_path: Path) -> None:
    """SIGKILL at random moments, checkpoints being written among them: the record equals the uninterrupted one."""
    steps = 1500
    subprocess.run(command(text_file, tmp_path / "whole", steps), check=True, capture_output=True)
    out = tmp_path / "cut"
    chance, kills = random.Random(0), 0
    arguments = command(text_file, out, steps)
    while True:
        process = subprocess.Popen(arguments, stdout=subprocess.DEVNULL)
        try:
            process.wait(timeout=2.5 + 2.5 * chance.random() if kills < 50 else None)
        except subprocess.TimeoutExpired:
            os.kill(process.pid, signal.SIGKILL)
            process.wait()
            kills += 1
        else:
            assert process.returncode == 0
            break
        if (out / "topkast-run.json").exists():
            arguments = [sys.executable, "-m", "topkast", "train", "--quiet", "--resume", str(out)]
    print(f"\n{kills} kills")
    assert kills >= 20
    assert record(out) == record(tmp_path / "whole")
