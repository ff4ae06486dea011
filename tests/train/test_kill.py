"""SIGKILL at any moment: what was acknowledged is there, right, and the run can go on to the same end."""

from __future__ import annotations

import os
import random
import signal
import time
from pathlib import Path

import pytest
import torch
from torch import Tensor

from store.raw_record import read_lines
from topkast.store import checkpoint, snapshot
from topkast.store.checkpoint import Retention
from topkast.train.folder import RunFolder

pytestmark = [pytest.mark.usefixtures("one_thread"), pytest.mark.filterwarnings("ignore:This process")]
SIZE = 30_000


class Walk:
    """A run in small: a state that depends on all steps before, and on random numbers."""

    def __init__(self) -> None:
        self.state = torch.zeros(SIZE)
        self.generator = torch.Generator().manual_seed(3)

    def step(self) -> None:
        self.state.mul_(0.9).add_(torch.rand(SIZE, generator=self.generator))

    def state_dict(self) -> dict[str, Tensor]:
        return {"state": self.state}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        self.state = state["state"]


def go_on(path: Path, last: int, acknowledge: int) -> None:
    """Starts or resumes the run, as a training loop does."""
    is_new = not (path / "topkast-run.json").exists()
    walk, step = Walk(), 0
    with RunFolder.create(path) if is_new else RunFolder.resume(path) as run:
        found = checkpoint.latest(path)
        if found.snapshot is None:
            run.metrics.cut(0)
        else:
            kept = snapshot.restore(found.snapshot, {"walk": walk}, generators={"batches": walk.generator})
            run.metrics.cut(kept["metrics"])
            step = found.snapshot.step
        while step < last:
            walk.step()
            step += 1
            run.metrics.append({"step": step, "sum": float(walk.state.sum())})
            if step % 2 == 0:
                taken = snapshot.take(
                    step,
                    {"walk": walk},
                    generators={"batches": walk.generator},
                    kept={"metrics": run.metrics.sync()},
                )
                # Each is written twice, which is what a run does that is stopped right after it was resumed.
                for _ in range(2):
                    checkpoint.write(path, taken, score=-abs(step - 6), retention=Retention(last=1))
                os.write(acknowledge, step.to_bytes(8, "little"))


def killed_after(path: Path, last: int, seconds: float) -> int:
    """Runs in a child that is killed; gives the last step it acknowledged, or 0."""
    read_end, write_end = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            go_on(path, last, write_end)
            os._exit(0)
        except BaseException as error:
            os.write(2, repr(error).encode())
            os._exit(1)
    os.close(write_end)
    time.sleep(seconds)
    os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    with open(read_end, "rb") as pipe:
        steps = pipe.read()
    assert not os.WIFEXITED(status) or os.WEXITSTATUS(status) == 0, "the child failed by itself"
    return int.from_bytes(steps[-8:], "little")


def test_killed_again_and_again_a_run_ends_as_if_it_never_was(tmp_path: Path) -> None:
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    last = 300
    chance = random.Random(0)
    acknowledged = num_kills = 0
    while num_kills < 40 or acknowledged == 0:  # a slow machine may need longer to get anywhere
        acknowledged = max(
            acknowledged, killed_after(killed, last, chance.uniform(0.0, 0.2 + 0.002 * num_kills))
        )
        num_kills += 1
        found = checkpoint.latest(killed)
        assert found.damaged == {}
        reached = 0 if found.snapshot is None else found.snapshot.step
        assert reached >= acknowledged
    last = acknowledged + 10
    devnull = os.open(os.devnull, os.O_WRONLY)
    go_on(killed, last, devnull)
    go_on(whole, last, devnull)
    os.close(devnull)
    assert (killed / "metrics.jsonl").read_bytes() == (whole / "metrics.jsonl").read_bytes()
    assert len(read_lines(killed / "metrics.jsonl")) == last
    mine, theirs = (checkpoint.latest(run).snapshot for run in (killed, whole))
    assert mine is not None
    assert theirs is not None
    assert torch.equal(mine.parts["walk"]["state"]["state"], theirs.parts["walk"]["state"]["state"])
    assert not list((killed / "checkpoints").glob(".tmp-*"))
