"""FLOPs that a run records are those that its method's schedule spends."""

from __future__ import annotations

from pathlib import Path

import pytest

from store.raw_record import read_lines
from topkast.train import job
from topkast.train.config import Config
from topkast.train.display import Quiet
from topkast.train.resolve import make_task, resolve
from topkast.train.trainer import Trainer

STEPS = 20


def config(**method: object) -> Config:
    return Config().with_values(
        {
            "data": {"task": "images"},
            "model": {"hidden": [16]},
            "method": {"forward_sparsity": 0.8, **method},
            "train": {"steps": STEPS, "batch": 8},
            "run": {"reference": ["none"], "evaluate_every": 7},
        }
    )


@pytest.mark.parametrize(
    "method",
    [
        {"method": "static"},
        {"method": "rigl", "refresh_every": 3},
        {"method": "pruning", "refresh_every": 2},
        {"method": "topkast", "backward_sparsity": 0.5},
        {"method": "topkast", "backward_sparsity": 0.0, "t_end": 6},
        {"method": "topkast", "backward_sparsity": 0.5, "anneal": "linear", "exchange_every": 3},
    ],
    ids=lambda m: str(m["method"]),
)
def test_a_run_records_what_the_accounting_of_the_whole_run_says(
    tmp_path: Path, method: dict[str, object]
) -> None:
    chosen = config(**method)
    job.start(chosen, tmp_path / "run", Quiet())
    recorded = [line for line in read_lines(tmp_path / "run/metrics.jsonl") if line["event"] == "progress"][
        -1
    ]
    task = make_task(chosen)
    resolved = resolve(chosen, task)
    trainer = Trainer(resolved, task, job.make_method(resolved))
    assert trainer.sparse is not None
    whole = trainer.sparse.flops(task.example(), steps=STEPS)
    assert recorded["flops"] == pytest.approx(whole.total, rel=1e-6)


def test_rigl_pays_for_its_dense_gradients(tmp_path: Path) -> None:
    spent = {}
    for name in ("static", "rigl"):
        job.start(
            config(method=name, **({"refresh_every": 3} if name == "rigl" else {})), tmp_path / name, Quiet()
        )
        spent[name] = read_lines(tmp_path / name / "metrics.jsonl")[-2]["flops"]
    assert spent["rigl"] > 1.05 * spent["static"]
