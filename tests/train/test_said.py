"""What a run says of itself: before its first step, on its way, and at its end."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
import torch

from topkast.cli.main import main
from topkast.report import write_report
from topkast.report.charts import _fine
from topkast.store.record import read_run
from topkast.store.run import Progress, Start
from topkast.train import display
from topkast.train.display import Lines
from topkast.train.events import regular_losses
from topkast.train.sampling import sample
from topkast.train.text_tasks import RecurrentTask

pytestmark = pytest.mark.usefixtures("one_thread")
SMALL = ["--width=32", "--depth=1", "--heads=2", "--window=16", "--limit=9000", "--batch=2", "--threads=1"]


def test_a_run_introduces_itself_and_says_what_comes_next(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = str(tmp_path / "run")
    assert main(["train", "--steps", "4", *SMALL, "--reference", "none", "--out", run]) == 0
    out = capsys.readouterr().out
    before, _, after = out.partition("loss")
    assert "data: bytes of the standard library's sources: 9,000 for training" in before
    assert "network: decoder (num_symbols 256, width 32, depth 1" in before
    assert "4,115 of 29,920 parameters in use (13.8%)" in before
    assert f"topkast generate {run} " in after
    assert f"topkast export {run} --format compressed" in after
    assert main(["train", "images", "--steps", "2", "--reference", "none", "--out", run + "2"]) == 0
    assert f"topkast eval {run}2" in capsys.readouterr().out
    assert main(["train", "--steps", "2", *SMALL, "--quiet", "--no-report", "--out", run + "3"]) == 0
    said = capsys.readouterr()
    assert said.out == ""
    assert "network" not in said.err


def test_the_report_has_the_engine_that_was_chosen(tmp_path: Path) -> None:
    run = str(tmp_path / "run")
    assert main(["train", "--steps", "6", *SMALL, "--reference=none", "--out", run, "--quiet"]) == 0
    read = read_run(run)
    assert read.end is not None
    assert read.layers["head"].engine == "auto"
    assert read.end.engines["head"].startswith("auto: ")
    assert read.end.engines["head"] in write_report(read).read_text()
    assert main(["train", "--steps=2", *SMALL, "--reference=none", f"--out={run}2", "--engine=masked"]) == 0
    assert '"engines"' not in (tmp_path / "run2" / "metrics.jsonl").read_text()


def test_the_time_to_go_is_said_once_if_it_is_worth_it(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(display.time, "monotonic", lambda: now[0])
    for seconds, expected in {1.0: 1, 0.001: 0}.items():
        out = io.StringIO()
        lines = Lines(out)
        lines.begin("a", Start("a", "text", "bits per byte", False, 200), 100)
        for step in range(101, 201):
            now[0] += seconds
            lines.step(step, 1.0)
        said = [line for line in out.getvalue().splitlines() if "to go" in line]
        assert len(said) == expected
        assert all("about 85\N{NO-BREAK SPACE}s to go" in line for line in said)


def test_the_loss_is_recorded_every_ten_steps(tmp_path: Path) -> None:
    run = str(tmp_path / "run")
    flags = ["--reference=none", "--engine=masked", "--out", run, "--quiet", "--evaluate-every"]
    assert main(["train", "--steps", "50", *SMALL, *flags, "25"]) == 0
    read = read_run(run)
    assert [step for point in read.points for step, _ in point.losses] == [10, 20, 30, 40, 50]
    assert read.points[0].losses[0][1] > read.points[-1].losses[-1][1]
    assert write_report(read).is_file()
    often = ["--steps=20", *SMALL, "--reference=none", f"--out={run}2", "--quiet", "--evaluate-every=10"]
    assert main(["train", *often]) == 0
    assert '"losses"' not in (tmp_path / "run2" / "metrics.jsonl").read_text()


def test_regular_losses_are_means_of_what_there_is() -> None:
    losses = [float(step) for step in range(26, 51)]
    assert regular_losses(losses, 50) == ((30, 28.0), (40, 35.5), (50, 45.5))
    assert regular_losses(losses[:10], 35) == ()


def test_the_loss_figure_passes_time_evenly_between_evaluations() -> None:
    points = [
        Progress(20, 2.0, 1.0, 0.0, 200.0, losses=((10, 3.0), (20, 2.0))),
        Progress(30, 4.0, 1.5, 0.0, 300.0),
    ]
    assert [(p.step, p.seconds, p.flops, p.loss) for p in _fine(points)] == [
        (10, 1.0, 100.0, 3.0),
        (20, 2.0, 200.0, 2.0),
        (30, 4.0, 300.0, 1.5),
    ]


@pytest.mark.parametrize("model", ["decoder", "transformer-xl"])
def test_a_run_of_text_shows_what_it_writes(tmp_path: Path, model: str) -> None:
    run = tmp_path / "run"
    flags = ["--steps=2", "--reference=none", "--model", model, "--out", str(run), "--quiet", "--no-report"]
    assert main(["train", *SMALL, *flags]) == 0
    text = (run / "sample.txt").read_text()
    assert len(text.encode()) >= 240
    (run / "sample.txt").write_text("x < y")
    page = write_report(read_run(run)).read_text()
    assert "What it writes" in page
    assert "<pre>x &lt; y</pre>" in page
    assert main(["train", "images", "--steps=2", "--reference=none", f"--out={run}2", "--quiet"]) == 0
    assert "What it writes" not in (tmp_path / "run2" / "report.html").read_text()


def test_a_sample_leaves_the_network_and_the_generators_as_they_were(tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_bytes(b"the quick brown fox. " * 200)
    task = RecurrentTask(data=tmp_path / "text.txt", width=16, depth=1, heads=2, window=8, memory=8, batch=2)
    model = task.network().build()
    torch.manual_seed(5)
    wanted = torch.rand(1)
    torch.manual_seed(5)
    before = model.memory_length
    assert sample(model, task, 5) is not None
    assert torch.equal(torch.rand(1), wanted)
    assert (model.training, model.memory_length) == (True, before)
