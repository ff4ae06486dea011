"""`torchrun -m topkast train`: runs of two processes, interrupted, killed and compared with others."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from store.raw_record import read_lines
from topkast.cli.main import main
from topkast.data.batches import Share
from topkast.store import checkpoint
from topkast.train import job
from topkast.train.display import Quiet

pytestmark = pytest.mark.usefixtures("one_thread")

# A network that remembers, with dropout in the second test: what is hard to take up again.
OPTIONS = [
    *("--model", "transformer-xl", "--width", "32", "--depth", "1", "--heads", "2", "--window", "16"),
    *("--memory", "16", "--batch", "4", "--steps", "24", "--threads", "1", "--engine", "native"),
    *("--evaluate-every", "8", "--checkpoint-every", "4", "--keep", "20", "--no-report"),
]


@pytest.fixture(scope="module")
def text_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("text") / "text.txt"
    path.write_bytes(b"the quick brown fox jumps over the lazy dog. " * 200)
    return path


@contextmanager
def torchrun(*arguments: str, restarts: int = 0) -> Iterator[subprocess.Popen[str]]:
    launcher = [
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node=2",
        f"--max-restarts={restarts}",
    ]
    with subprocess.Popen(
        [sys.executable, *launcher, "-m", "topkast", "train", *arguments],
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONFAULTHANDLER": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        try:
            yield process
        finally:
            process.terminate()  # which takes the workers along


def worker(launcher: int, rank: int) -> int:
    """The process of a rank, by what it was told."""
    children = Path(f"/proc/{launcher}/task/{launcher}/children").read_text().split()
    for child in map(int, children):
        told = Path(f"/proc/{child}/environ").read_bytes().split(b"\0")
        if f"RANK={rank}".encode() in told:
            return child
    raise AssertionError(f"no rank {rank} among {children}")


def once(condition: Callable[[], bool], process: subprocess.Popen[str]) -> None:
    while not condition():
        assert process.poll() is None, process.communicate()[0]
        time.sleep(0.005)


def progress(run: Path) -> list[dict[str, Any]]:
    lines = [line for line in read_lines(run / "metrics.jsonl") if line["event"] == "progress"]
    return [{name: value for name, value in line.items() if name != "seconds"} for line in lines]


def last_state(run: Path) -> dict[str, Any]:
    found = checkpoint.latest(run)
    assert found.snapshot is not None
    assert found.snapshot.step == 24
    return found.snapshot.parts


def assert_same_run(mine: Path, other: Path) -> None:
    """Sets exactly; losses, values and optimizer state to rounding in float32, over 24 steps."""
    for a, b in zip(progress(mine), progress(other), strict=True):
        assert a["step"] == b["step"]
        assert a["loss"] == pytest.approx(b["loss"], rel=1e-4)
        assert a["quality"] == pytest.approx(b["quality"], rel=1e-4)
    ours, theirs = last_state(mine), last_state(other)
    for name, tensor in ours["model"]["state"].items():
        if tensor.is_floating_point():
            torch.testing.assert_close(tensor, theirs["model"]["state"][name], rtol=1e-2, atol=1e-4, msg=name)
        else:
            assert torch.equal(tensor, theirs["model"]["state"][name]), name
    for key, state in ours["optimizer"]["state"]["state"].items():
        expected = theirs["optimizer"]["state"]["state"][key]
        torch.testing.assert_close(state["exp_avg"], expected["exp_avg"], rtol=1e-2, atol=1e-4)
    memory = "remembered"
    torch.testing.assert_close(
        ours["task"]["state"][memory], theirs["task"]["state"][memory], rtol=1e-2, atol=1e-2
    )


def test_interrupted_it_goes_on_alone_to_the_end_of_one_process(text_file: Path, tmp_path: Path) -> None:
    """One rank is told to stop, both do, and one process takes it up."""
    data = ["--data", str(text_file), *OPTIONS, "--reference", "none"]
    run, whole = tmp_path / "run", tmp_path / "whole"
    with torchrun(*data, "--out", str(run)) as process:
        once(lambda: (run / "checkpoints" / "step-00000004").is_dir(), process)
        os.kill(worker(process.pid, 1), signal.SIGTERM)
        said = process.communicate(timeout=240)[0]
    assert process.returncode == 1, said  # torchrun's own, for workers that end with 143
    assert "exitcode  : 143" in said, said
    last = read_lines(run / "metrics.jsonl")[-1]
    assert last["stopped"] == "SIGTERM came"
    assert 4 < last["step"] < 24
    assert checkpoint.latest(run).snapshot is not None
    assert said.count("run folder:") == said.count("stopped, with a checkpoint") == 1, "one rank speaks"

    assert job.resume(run, Quiet()).is_finished
    assert main(["train", *data, "--out", str(whole), "--quiet"]) == 0
    assert_same_run(run, whole)


def test_killed_it_is_restarted_and_ends_as_if_it_never_was(text_file: Path, tmp_path: Path) -> None:
    data = ["--data", str(text_file), *OPTIONS, "--dropout", "0.1", "--reference", "static"]
    killed, whole = tmp_path / "killed", tmp_path / "whole"
    with (
        torchrun(*data, "--out", str(killed), restarts=1) as process,
        torchrun(*data, "--out", str(whole)) as undisturbed,
    ):
        once(lambda: (killed / "checkpoints" / "step-00000008").is_dir(), process)
        os.kill(worker(process.pid, 1), signal.SIGKILL)
        said = process.communicate(timeout=240)[0]
        assert process.returncode == 0, said
        assert said.count(f"going on with {killed}") == 1
        said = undisturbed.communicate(timeout=240)[0]
        assert undisturbed.returncode == 0, said
    assert progress(killed) == progress(whole)
    references = [
        [(e["run"], e["quality"]) for e in read_lines(run / "metrics.jsonl") if e["event"] == "reference"]
        for run in (killed, whole)
    ]
    assert references[0] == references[1] != []
    ours, theirs = (last_state(run)["model"]["state"] for run in (killed, whole))
    assert all(torch.equal(tensor, theirs[name]) for name, tensor in ours.items())


def test_a_batch_is_divided_or_refused() -> None:
    assert [Share(rank, 4).of(8) for rank in range(4)] == [slice(0, 2), slice(2, 4), slice(4, 6), slice(6, 8)]
    with pytest.raises(ValueError, match=r"must be divisible by their number \(3\), got 8"):
        Share(0, 3).of(8)


@pytest.mark.parametrize(
    ("arguments", "told", "message"),
    [
        (["compare", "dense"], {"RANK": "0", "WORLD_SIZE": "2"}, "only `train` runs as several processes"),
        (["train"], {"TORCHELASTIC_MAX_RESTARTS": "1"}, "needs --out, so that it finds its folder again"),
    ],
)
def test_what_torchrun_cannot_start(
    arguments: list[str],
    told: dict[str, str],
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for name, value in told.items():
        monkeypatch.setenv(name, value)
    assert main(arguments) == 2
    assert message in capsys.readouterr().err
