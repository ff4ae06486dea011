from __future__ import annotations

from pathlib import Path

import pytest
import synthetic_runs as made

from topkast.cli.main import main
from topkast.report import read_run, write_comparison
from topkast.report.groups import group


def sparse(name: str = "Top-KAST 95/90", floor: float = 2.5, **fields: object) -> list[made.Event]:
    points = [made.progress(step, floor=floor) for step in (100, 200, 300, 400)]
    return [made.start(name, density=0.05, **fields), *points, made.end()]


def words(path: Path) -> str:
    return path.read_text(encoding="utf-8").replace("\N{NO-BREAK SPACE}", " ")


def test_several_runs_go_on_one_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folders = [made.write(tmp_path / "a", made.ordinary()), made.write(tmp_path / "b", sparse())]
    assert main(["report", *map(str, folders)]) == 0
    out = tmp_path / "comparison.html"
    assert capsys.readouterr().out == f"{out}\n"
    page = words(out)
    assert "2 runs of the task “text”" in page
    assert "The best is dense, with 2.430 held-out bits per byte (lower is better)." in page
    assert "parameters in use (of dense)" in page
    assert "80,000 (15.1 %)" in page
    names = ("quality_by_step", "quality_by_flops", "quality_by_time", "final_quality")
    files = {path.name for path in (tmp_path / "comparison-figures").iterdir()}
    assert files == {f"{name}.{kind}" for name in names for kind in ("svg", "png")}
    assert not (folders[0] / "figures").exists()


def test_runs_of_one_name_are_told_apart_by_their_folders(tmp_path: Path) -> None:
    runs = [read_run(made.write(tmp_path / name, sparse())) for name in ("seed0", "seed1")]
    page = words(write_comparison(runs, tmp_path / "page.html"))
    assert "Top-KAST 95/90 (seed<wbr>" not in page
    assert "Top-KAST 95/<wbr>90 (seed0)" in page
    assert "Top-KAST 95/<wbr>90 (seed1)" in page


def test_unfinished_runs_and_different_lengths_are_noted(tmp_path: Path) -> None:
    killed = [made.start("killed", steps=800), made.progress(100)]
    runs = [read_run(made.write(tmp_path / "a", sparse())), read_run(made.write(tmp_path / "b", killed))]
    page = words(write_comparison(runs, tmp_path / "page.html"))
    assert "killed (b): It has not ended: 100 of 800 steps are recorded." in page
    assert "different numbers of steps" in page


def test_a_comparison_of_runs_that_all_failed_is_still_a_page(tmp_path: Path) -> None:
    failed = [made.start(), {**made.progress(50), "quality": None}]
    runs = [read_run(made.write(tmp_path / name, failed)) for name in "ab"]
    assert "No run has a finite held-out bits per byte." in words(
        write_comparison(runs, tmp_path / "page.html")
    )


def test_hostile_names_are_words_in_a_comparison_too(tmp_path: Path) -> None:
    hostile = "<script>alert(1)</script>"
    runs = [
        read_run(made.write(tmp_path / "a", made.ordinary())),
        read_run(made.write(tmp_path / "b", sparse(hostile))),
    ]
    assert "<script" not in words(write_comparison(runs, tmp_path / "page.html"))


def test_runs_of_different_tasks_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    images = sparse(task="images", quality_name="accuracy, %", higher_is_better=True)
    folders = [made.write(tmp_path / "a", sparse()), made.write(tmp_path / "b", images)]
    assert main(["report", *map(str, folders)]) == 2
    assert "runs of different tasks cannot be compared: " in capsys.readouterr().err
    assert not (tmp_path / "comparison.html").exists()


def test_a_run_given_twice_is_refused(tmp_path: Path) -> None:
    run = read_run(made.write(tmp_path / "a", sparse()))
    with pytest.raises(ValueError, match="a is given twice: give each run once"):
        write_comparison([run, run], tmp_path / "page.html")
    with pytest.raises(ValueError, match="takes at least two runs, got 1"):
        write_comparison([run], tmp_path / "page.html")


CONFIG = '[train]\nseed = {}\nlr = {}\n[method]\nmethod = "topkast"\n'


def test_runs_that_differ_in_their_seed_alone_are_one_line(tmp_path: Path) -> None:
    folders = []
    for seed, floor, lr in [(0, 2.0, 1), (1, 2.4, 1), (2, 3.0, 2)]:
        folders.append(made.write(tmp_path / f"seed{seed}", sparse(floor=floor)))
        (folders[-1] / "config.toml").write_text(CONFIG.format(seed, lr))
    runs = [read_run(folder) for folder in folders]
    together, alone = group(runs)
    assert [run.folder.name for run in together.runs.values()] == ["seed0", "seed1"]
    assert together.mean == pytest.approx((runs[0].last.quality + runs[1].last.quality) / 2)
    assert together.deviation == pytest.approx(0.4 / 2**0.5)
    assert [point.step for point in together.points] == [100, 200, 300, 400]
    assert together.points[-1].quality == pytest.approx(together.mean)
    assert alone.points is runs[2].points
    page = words(write_comparison(runs, tmp_path / "page.html"))
    assert "± 0.283 (2 seeds)" in page
    assert "Top-KAST 95/<wbr>90 (seed2)" in page
