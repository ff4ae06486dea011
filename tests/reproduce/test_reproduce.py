"""`topkast reproduce` on scikit-learn's digits with runs of a few steps: runs, cache, pages, control, kill."""

from __future__ import annotations

import csv
import dataclasses
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from topkast.cli.main import main
from topkast.reproduce import farm
from topkast.reproduce.archive import Archive
from topkast.reproduce.catalogue import EXPERIMENTS
from topkast.reproduce.experiment import find, in_folders
from topkast.reproduce.farm import place
from topkast.reproduce.recipes import topkast
from topkast.reproduce.scales import SCALES, TINY
from topkast.reproduce.worker import work
from topkast.train.resolve import make_method

STEPS = 64
subprocess_popen = subprocess.Popen  # the real one, where a fixture has put another in its place
SHORT = TINY.with_steps(STEPS)


@pytest.fixture(autouse=True)
def _no_data(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TOPKAST_DATA", raising=False)


class _InThisProcess:
    """In place of a process: works at once, for tests of everything but the processes."""

    def __init__(self, command: list[str], **_: object) -> None:
        self.returncode = work(Path(command[3]), keeps=command[4:] == ["keep"])

    def poll(self) -> int:
        return self.returncode


@pytest.fixture
def reproduce(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Callable[..., int]]:
    monkeypatch.setattr(farm.subprocess, "Popen", _InThisProcess)
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield lambda *words: main(["reproduce", *words, "--out", str(tmp_path), "--steps", str(STEPS)])
    torch.set_num_threads(before)


@pytest.mark.parametrize("scale", SCALES.values(), ids=lambda s: s.name)
def test_every_row_has_a_run_at_every_scale(scale) -> None:
    for experiment in EXPERIMENTS.values():
        for row in experiment.rows:
            config = scale.config(row.recipe, 0, is_forecast=True)
            make_method(config)
            assert config.train.steps == round(row.recipe.length * scale.config(
                topkast(row.recipe.workload, 0.9, 0.8), 0, is_forecast=True).train.steps)  # fmt: skip


def test_a_place_is_that_of_the_configuration_whatever_the_threads(tmp_path: Path) -> None:
    config = SHORT.config(topkast("images", 0.9, 0.8), 0)
    here = place(tmp_path, config)
    assert place(tmp_path, config.with_values({"train": {"threads": 7}})).folder == here.folder
    assert place(tmp_path, config.with_values({"train": {"seed": 1}})).folder != here.folder
    # λ = 1e-4 is what the scale has anyway.
    assert place(tmp_path, SHORT.config(topkast("images", 0.9, 0.8, penalty=1e-4), 0)).folder == here.folder


def test_the_papers_steps_are_scaled() -> None:
    stopped = SHORT.config(topkast("images", 0.9, 0.0, stop=5 / 32), 0)
    assert stopped.method.t_end == 10
    assert SHORT.config(topkast("images", 0.9, 0.8, refresh=100), 0).method.refresh_every == 2
    assert (
        SCALES["paper"]
        .config(topkast("images", 0.9, 0.8, refresh=100), 0, is_forecast=True)
        .method.refresh_every
        == 100
    )


def test_tables_figures_and_a_page(reproduce, tmp_path: Path, capsys) -> None:
    assert reproduce("figure-3a", "figure-3b", "exploration-size", "--seeds", "2") == 0
    folder = tmp_path / "tiny"
    said = capsys.readouterr().out
    assert "The mask stabilises over time." in said
    assert "12 runs, 0 of them finished before" in said
    page = (folder / "index.html").read_text()
    assert "Figure 3b" in page
    assert page.count("<svg") == 3
    for name in ("figure-3a", "exploration-size"):
        assert (folder / f"{name}.svg").is_file()
        assert (folder / f"{name}.png").is_file()
    table = (folder / "exploration-size.md").read_text()
    assert table.count("\n") == 2 + len(EXPERIMENTS["exploration-size"].rows)
    assert "±" in table
    rows = list(csv.DictReader((folder / "exploration-size.csv").read_text().splitlines()))
    assert len(rows) == 10
    result = json.loads(next((folder / "runs").glob("*/result.json")).read_text())
    assert 0 <= result["quality"] <= 100
    assert not list((folder / "runs").glob("*/run/checkpoints/*"))
    # Masks are compared between checkpoints 5/32 of the run apart.
    found = find(EXPERIMENTS["figure-3a"], SHORT, range(2), in_folders(SHORT, folder))
    masks = found.groups["Top-KAST 80/50"].results[0]["masks"]
    assert [m["to"] - m["from"] for m in masks[:5]] == [10] * 5
    assert all(0 <= share <= 1 for m in masks for share in m["layers"].values())


def test_finished_runs_are_not_run_again_and_a_damaged_result_is(reproduce, tmp_path: Path, capsys) -> None:
    assert reproduce("figure-3a", "--seeds", "2") == 0
    before = (tmp_path / "tiny/figure-3a.csv").read_bytes()
    damaged = next((tmp_path / "tiny/runs").glob("*/result.json"))
    capsys.readouterr()
    assert reproduce("figure-3a", "--seeds", "2") == 0
    assert "2 runs, 2 of them finished before" in capsys.readouterr().out
    damaged.write_text('{"quality": "high"}')
    (damaged.parent / "run").rename(damaged.parent / "old")
    assert reproduce("figure-3a", "--seeds", "2") == 0
    assert "2 runs, 1 of them finished before" in capsys.readouterr().out
    numbers = [
        [(r["row"], r["seed"], r["quality"]) for r in csv.DictReader(text.decode().splitlines())]
        for text in (before, (tmp_path / "tiny/figure-3a.csv").read_bytes())
    ]
    assert numbers[0] == numbers[1]


@pytest.mark.slow  # a whole table
def test_without_exploration_table_1_does_not_hold(reproduce, tmp_path: Path, capsys) -> None:
    """The check can fail: with B = A by construction the claim on exploration is reported as not holding."""
    assert reproduce("table-1", "--seeds", "2", "--control", "no-exploration") == 0
    lines = capsys.readouterr().out.splitlines()
    verdict = next(line for line in lines if "Without exploration (t = 0) Top-KAST is much worse" in line)
    assert verdict.strip().startswith("does not hold")
    assert (tmp_path / "tiny/control-no-exploration/index.html").is_file()


def test_a_run_that_fails_is_named_and_the_others_are_shown(
    reproduce, tmp_path: Path, capsys, monkeypatch
) -> None:
    from topkast.train import job
    from topkast.train.session import Stopped

    start = job.start

    def fails(config, out, display):
        if config.method.backward_sparsity == 0.5:
            raise Stopped("the loss of step 3 is nan")
        return start(config, out, display)

    monkeypatch.setattr(job, "start", fails)
    assert reproduce("exploration-size", "--seeds", "1") == 1
    said = capsys.readouterr()
    assert "Top-KAST 90/50" in said.err
    assert "the loss of step 3 is nan" in said.err
    table = (tmp_path / "tiny/exploration-size.md").read_text()
    assert "| Top-KAST 90/50 | not run |" in table
    assert "Not all of its runs are finished" in (tmp_path / "tiny/index.html").read_text()


def test_a_dry_run_says_what_it_takes(capsys) -> None:
    assert main(["reproduce", "table-1", "--scale", "paper", "--dry-run"]) == 0
    said = capsys.readouterr().out
    assert max(map(len, said.splitlines())) <= 80
    assert "table-1: Top-KAST 90/0 (t = 5000)" in " ".join(said.split())
    assert "32,000" in said
    assert "8 runs × 1 seeds" in said


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["table-9"], "table-1"),
        ([], "--list"),
        (["table-1", "--scale", "huge"], "--scale must be one of"),
        (["table-1", "--seeds", "0"], "--seeds must be at least 1"),
        (["table-1", "--scale", "small"], "cifar-10"),
        (["--document", "x.md"], "no finished table"),
        (["table-1", "--control", "wrong-rate", "--results", "r"], "leave out --results, which keeps them"),
        (["table-1", "--document", "x.md"], "it goes with --results and --seeds alone"),
    ],
)
def test_mistakes_are_answered(words: list[str], message: str, capsys, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["reproduce", *words]) == 2
    assert message in capsys.readouterr().err


def test_the_document_is_made_from_kept_results_alone(reproduce, tmp_path: Path, capsys, monkeypatch) -> None:
    results = tmp_path / "r"
    with_fallback(monkeypatch)
    assert reproduce("figure-3a", "--seeds", "2", "--results", str(results)) == 0
    lines = (results / "tiny.jsonl").read_text().splitlines()
    assert len(lines) == 2
    assert max(map(len, lines)) < 20_000
    table = (tmp_path / "tiny/figure-3a.csv").read_text()
    # Without the folders of runs the same tables come out, and nothing is trained.
    shutil.rmtree(tmp_path / "tiny")
    capsys.readouterr()
    assert reproduce("figure-3a", "--seeds", "2", "--results", str(results)) == 0
    assert "2 runs, 2 of them finished before" in capsys.readouterr().out
    again = (tmp_path / "tiny/figure-3a.csv").read_text()
    assert [r[:4] for r in csv.reader(again.splitlines())] == [r[:4] for r in csv.reader(table.splitlines())]
    # The runs of a trial are not those of the scale: the document has none of them.
    assert main(["reproduce", "--document", str(tmp_path / "r.md")]) == 2
    words = ["reproduce", "--document", str(tmp_path / "r.md"), "--steps", str(STEPS), "--seeds", "2"]
    assert main(words) == 0
    text = (tmp_path / "r.md").read_text()
    assert "The mask stabilises over time." in text
    assert "topkast reproduce figure-3a --scale tiny" in text
    assert (tmp_path / "r/tiny-figure-3a.svg").is_file()
    assert "exploration-size" not in text, "of which no row was run"
    assert "| time |" not in text, "of rows that may have met another machine"
    before = text, (tmp_path / "r/tiny-figure-3a.svg").read_text()
    assert main(words) == 0
    assert ((tmp_path / "r.md").read_text(), (tmp_path / "r/tiny-figure-3a.svg").read_text()) == before


def with_fallback(monkeypatch: pytest.MonkeyPatch) -> None:
    """The document looks for the first data set of a workload: here that is the one that every machine has."""
    for one in SCALES.values():
        chosen = {name: (choices[-1],) for name, choices in one.workloads.items()}
        monkeypatch.setitem(SCALES, one.name, dataclasses.replace(one, workloads=chosen))


@pytest.mark.parametrize("line", ["{", "[]", '{"name": "a"}', '{"name": "a", "label": "", "result": {}}'])
def test_a_damaged_archive_is_named(line: str, tmp_path: Path) -> None:
    (tmp_path / "tiny.jsonl").write_text(line + "\n")
    with pytest.raises(ValueError, match="tiny.jsonl, line 1 is not a run that `topkast reproduce` has kept"):
        Archive.read(tmp_path, "tiny")


def test_killed_in_the_middle_it_goes_on_to_the_same_table(reproduce, tmp_path: Path) -> None:
    """Real processes: the command is killed, and the worker with it, then run again; beside it a whole one."""
    told = ["reproduce", "figure-3a", "--seeds", "1", "--steps", "320", "--jobs", str(os.cpu_count() or 1)]
    words = [
        sys.executable,
        "-m",
        "topkast",
        *told,
        "--out",
        str(tmp_path / "killed"),
    ]  # a thread for each job
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    start = subprocess_popen
    process = start(words, env=environment, stdout=subprocess.DEVNULL, process_group=0)
    runs = tmp_path / "killed/tiny/runs"
    deadline = time.monotonic() + 120
    while not list(runs.glob("*/run/checkpoints/*")) and time.monotonic() < deadline:
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=60) == 128 + signal.SIGTERM
    assert not list(runs.glob("*/result.json"))
    again = start(words, env=environment, stdout=subprocess.DEVNULL)
    assert again.wait(timeout=120) == 0
    assert main([*told, "--out", str(tmp_path / "whole")]) == 0
    tables = [
        (tmp_path / f / "tiny/figure-3a.csv").read_text().splitlines()[1].split(",")
        for f in ("killed", "whole")
    ]
    assert tables[0][:6] == tables[1][:6]  # row, paper, seed, quality, parameters, FLOPs; not the time
    results = [
        next((tmp_path / f / "tiny/runs").glob("*/result.json")).read_text() for f in ("killed", "whole")
    ]
    assert results[0] == results[1]
