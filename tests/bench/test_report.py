from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from topkast.bench.report import Report, environment, headline, read, write


def test_a_report_survives_its_file(tmp_path: Path) -> None:
    report = Report(
        "linear",
        {"tokens": 8, "shapes": [[4, 2]]},
        rows=[{"case": "4 → 2", "contender": "native", "seconds": 0.1, "ratio": 1.5}],
        overall=[{"contender": "native", "ratio": 1.5}],
        break_even=[{"sparsity": None, "always": True}],
        left_out={"spops": "not installed"},
    )
    write(report, tmp_path / "a.json")
    assert read(tmp_path / "a.json") == report
    content = json.loads((tmp_path / "a.json").read_text())
    assert content["format"] == 1
    assert content["environment"]["threads"] == torch.get_num_threads()
    assert [p.name for p in tmp_path.iterdir()] == ["a.json"], "no temporary file is left"


def test_the_environment_says_what_figures_depend_on() -> None:
    env = environment()
    assert env["torch"] == torch.__version__
    assert env["peers"]["torch_csr"] == torch.__version__
    assert env["cpu"]
    assert f"1 threads, {env['isa']}, float32" in headline(env)


def test_a_failed_write_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    write(Report("select", {}), path)
    before = path.read_bytes()
    with pytest.raises(ValueError, match="JSON"):
        write(Report("select", {"nan": float("nan")}), path)
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["a.json"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", r"is not a report that `topkast bench --json` wrote"),
        ("[]", r"is not a report"),
        ("{}", r"is not a report .*'format'"),
        ('{"format": 2}', r"has format 2, this version of topkast reads 1"),
        ('{"format": 1, "suite": "linear"}', r"is not a report .*options"),
    ],
)
def test_other_files_are_refused(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "other.json"
    path.write_text(text)
    with pytest.raises(ValueError, match=message):
        read(path)
