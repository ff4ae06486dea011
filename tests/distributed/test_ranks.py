"""Two processes over gloo, started once; each check of `rank_checks.py` is a subtest: one test, so that
parallel test runs start them once too.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

SCRIPT = Path(__file__).with_name("rank_checks.py")


def _checks(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(SCRIPT.parent)  # as it is for the program
    spec = importlib.util.spec_from_file_location("rank_checks", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def results(tmp_path: Path) -> list[dict[str, str | None]]:
    folder = tmp_path
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    ranks = [
        subprocess.Popen(
            [sys.executable, "-W", "error", str(SCRIPT), str(rank), str(folder)],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        said = [process.communicate(timeout=240)[0] for process in ranks]
    finally:
        for process in ranks:
            process.kill()
    assert [process.returncode for process in ranks] == [0, 0], said
    return [json.loads((folder / f"results-{rank}.json").read_text()) for rank in range(2)]


def test_two_ranks(
    results: list[dict[str, str | None]], subtests: pytest.Subtests, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = list(_checks(monkeypatch).CHECKS)
    assert [list(result) for result in results] == [names, names]
    for name in names:
        with subtests.test(msg=name):
            for rank, result in enumerate(results):
                assert result[name] is None, f"rank {rank}: {result[name]}"


UNEVEN = """
import datetime, os, sys, torch, torch.distributed as dist, topkast
rank, folder = int(sys.argv[1]), sys.argv[2]
dist.init_process_group("gloo", init_method=f"file://{folder}/uneven", rank=rank, world_size=2,
                        timeout=datetime.timedelta(seconds=20))
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(8, 12))
sparse = topkast.sparsify(model, topkast.TopKAST(0.8, 0.5, refresh_every=1, exchange_every=1))
sparse.expects_penalty = False
optimizer = sparse.attach(torch.optim.SGD(model.parameters(), lr=0.1))
for step in range(2 + 2 * rank):  # the same data on both, so that nothing but the number differs
    model(torch.ones(4, 8)).square().mean().backward()
    optimizer.step()
os._exit(0)  # at once: gloo's threads may end a process that hangs up in order with a signal
"""


def test_a_rank_that_takes_more_steps_is_told_so(tmp_path: Path) -> None:
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", UNEVEN, str(rank), str(tmp_path)], stderr=subprocess.PIPE, text=True
        )
        for rank in range(2)
    ]
    errors = [process.communicate(timeout=120)[1] for process in processes]
    assert processes[0].returncode == 0, errors[0]
    assert "All ranks must take the same number of steps" in errors[1]
