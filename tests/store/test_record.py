from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from report import synthetic_runs as made
from store.raw_record import read_lines
from topkast.store.record import METRICS, as_json, read_events, read_run
from topkast.store.run import Progress, Start


def test_a_whole_run_is_read(tmp_path: Path) -> None:
    run = read_run(made.write(tmp_path / "run", made.ordinary()))
    assert (run.name, run.task, run.steps, len(run.points)) == ("Top-KAST 90/80", "text", 400, 20)
    assert run.layers["blocks.0.mlp.up"].shape == (384, 128)
    assert run.last.layers["blocks.0.mlp.up"].forward == 4915
    assert [r.name for r in run.references.values()] == ["fixed random mask", "dense"]
    assert run.references["dense"].points[-1].flops == 9.1e9 * 400
    assert run.bytes is not None
    assert run.bytes.rest == 480_000
    assert run.seconds_per_step == 0.064
    assert run.environment["threads"] == 2
    assert "refresh_every = 10" in run.config
    assert run.notes == []


def test_a_killed_run_has_no_end_and_a_note_of_its_torn_line(tmp_path: Path) -> None:
    events = [made.start(), made.progress(50), made.progress(100)]
    run = read_run(made.write(tmp_path / "run", events, tail='{"event": "progress", "step": 15'))
    assert run.end is None
    assert run.bytes is None
    assert run.last.step == 100
    assert run.seconds_per_step == pytest.approx(0.064)
    assert run.notes == [
        "Line 4 of metrics.jsonl was cut off, as when a run is killed while it writes; it is left out."
    ]


def test_a_line_torn_inside_a_letter_is_only_torn(tmp_path: Path) -> None:
    folder = made.write(tmp_path / "run", [made.start(), made.progress(50)])
    with (folder / "metrics.jsonl").open("ab") as file:
        file.write('{"event": "é'.encode()[:-1])
    assert len(read_run(folder).notes) == 1


def test_events_are_written_as_they_were_read(tmp_path: Path) -> None:
    """Those of a made-up run, and those that version 0.1 has written."""
    old = Path(__file__).parents[1] / "formats" / "0.1.0" / "run"
    for folder in (made.write(tmp_path / "run", made.ordinary()), old):
        again = [as_json(event) for event in read_events(folder / METRICS)]
        assert json.loads(json.dumps(again)) == read_lines(folder / METRICS)


def test_the_engine_of_a_layer_is_the_last_that_was_recorded(tmp_path: Path) -> None:
    events = [made.start(layers=["a", "b"]), made.progress(50, ["a", "b"])]
    run = read_run(made.write(tmp_path / "running", events))
    assert [run.engine(name) for name in "ab"] == ["native", "native"]
    ended = read_run(made.write(tmp_path / "ended", [*events, {**made.end(), "engines": {"a": "auto: csr"}}]))
    assert [ended.engine(name) for name in "ab"] == ["auto: csr", "native"]


def test_a_line_that_is_cut_off_is_no_obstacle_to_a_reader_of_events(tmp_path: Path) -> None:
    folder = made.write(tmp_path / "run", [made.start(), made.progress(50)], tail='{"event"')
    notes: list[str] = []
    assert [type(event) for event in read_events(folder / METRICS, notes)] == [Start, Progress]
    assert len(notes) == 1


def test_unknown_events_and_fields_are_ignored(tmp_path: Path) -> None:
    events = [
        {"event": "hello"},
        made.start(future=1),
        {"event": "note"},
        {**made.progress(50), "future": [1]},
    ]
    assert read_run(made.write(tmp_path / "run", events)).last.step == 50


def test_null_stands_for_not_a_number(tmp_path: Path) -> None:
    point = made.progress(50)
    point["quality"] = None
    point["layers"]["blocks.0.mlp.up"]["mean_explored"] = None
    run = read_run(made.write(tmp_path / "run", [made.start(), point]))
    assert math.isnan(run.last.quality)
    assert math.isnan(run.last.layers["blocks.0.mlp.up"].mean_explored)


def test_a_run_without_its_other_files_is_still_read(tmp_path: Path) -> None:
    folder = made.write(tmp_path / "run", made.ordinary())
    (folder / "config.toml").unlink()
    (folder / "environment.json").write_text("{not json")
    run = read_run(folder)
    assert (run.config, run.environment) == ("", {})
    assert run.notes == ["environment.json cannot be read as JSON; it is left out."]


# ---- what is not a run --------------------------------------------------------------------------------


def test_a_folder_that_is_not_a_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="nowhere does not exist: give the folder of a run"):
        read_run(tmp_path / "nowhere")
    with pytest.raises(FileNotFoundError, match=r"is not a run: it has no metrics\.jsonl"):
        read_run(tmp_path)
    file = tmp_path / "file"
    file.touch()
    with pytest.raises(FileNotFoundError, match="is a file: give the folder"):
        read_run(file)


@pytest.mark.parametrize("events", [[], [made.start()]])
def test_a_run_that_has_only_begun_is_refused(tmp_path: Path, events: list[made.Event]) -> None:
    with pytest.raises(ValueError, match="has no metrics yet: .* wait for it"):
        read_run(made.write(tmp_path / "run", events))


BAD = {
    "line 2 is not JSON .*: mend or remove it": '{"event": "progress", "step"\n{"event": "progress"}',
    r"line 2 \(None\) must be a JSON object, got 17": "17",
    r"line 2 \(progress\) lacks 'step'": '{"event": "progress"}',
    r"line 2 \(progress\): 'step' must be a whole number, at least 0, got 1\.5": '{"event": "progress", "step": 1.5}',
    r"line 2 \(progress\): 'seconds' must be a number, got 'x'": '{"event": "progress", "step": 1, "seconds": "x"}',
    r"line 2 \(end\): 'step' must be a whole number, at least 0, got -1": '{"event": "end", "step": -1}',
    r"line 2 \(reference\): 'curve' must be rows of 5 numbers, got \[1\]": '{"event": "reference", "curve": [[1]]}',
    r"line 2 \(reference\): each row of 'curve' must begin with a step": '{"event": "reference", "curve": [[NaN, 1, 1, 1, 1]]}',
    r"line 2 \(start\): 'higher_is_better' must be true or false, got 'no'": '{"event": "start", "run": "a", "task": "b", "quality_name": "c", "higher_is_better": "no"}',
}


@pytest.mark.parametrize("message", BAD)
def test_a_bad_line_is_named(tmp_path: Path, message: str) -> None:
    folder = made.write(tmp_path / "run", [made.start()], tail=BAD[message] + "\n")
    with pytest.raises(ValueError, match=rf"run/metrics\.jsonl, {message}"):
        read_run(folder)


def test_metrics_that_begin_in_the_middle_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"line 1 \(progress\) comes before any start"):
        read_run(made.write(tmp_path / "run", [made.progress(50)]))


def test_a_second_start_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"line 3 \(start\) comes a second time: not a record of ours"):
        read_run(made.write(tmp_path / "run", [made.start(), made.progress(50), made.start()]))
