from __future__ import annotations

import sys
from pathlib import Path

import pytest

from topkast.bench import plot
from topkast.bench.report import Report


def made_up(pairs: list[tuple[float, float]], crossing: float | None = 0.45) -> Report:
    overall = [
        {"forward_sparsity": f, "backward_sparsity": b, "contender": name, "ratio": ratio * f, "ideal": 9}
        for name, ratio in (("native", 5.0), ("sparselab", 2.0), ("unheard-of", 1.0))
        for f, b in pairs
    ]
    found = {"sparsities": [0.4, 0.5], "ratios": [0.9, 1.1], "sparsity": crossing, "always": False}
    options = {"tokens": 8, "shapes": [[4, 2]]}
    return Report("linear", options, overall=overall, break_even=[found])


def text_of(path: Path, report: Report) -> str:
    """What is written in the drawing; matplotlib notes the text of each label beside its outlines."""
    plot.plot(report, path)
    return path.read_text()


def test_the_plot_shows_ours_peers_ideal_dense_and_break_even(tmp_path: Path) -> None:
    drawing = text_of(tmp_path / "a.svg", made_up([(0.8, 0.8), (0.9, 0.9)]))
    for label in ("topkast", "sparselab", "unheard-of", "ideal by FLOPs", "dense", "break-even", "at 45%"):
        assert f"<!-- {label} -->" in drawing
    for ratio in ("4.0×", "4.5×", "1.6×", "1.8×"):  # ours, and the best of the others
        assert f"<!-- {ratio} -->" in drawing
    assert "<!-- 0.9× -->" not in drawing, "the slower peer's points have no number"


def test_ours_goes_on_to_where_the_break_even_was_sought() -> None:
    drawn = plot.curves(made_up([(0.8, 0.8), (0.9, 0.9)]))
    assert list(drawn["native"]) == [(0.4, 0.4), (0.5, 0.5), (0.8, 0.8), (0.9, 0.9)]
    assert list(drawn["sparselab"]) == [(0.8, 0.8), (0.9, 0.9)]


def test_pairs_are_on_the_axis_where_sparsities_differ(tmp_path: Path) -> None:
    drawing = text_of(tmp_path / "a.svg", made_up([(0.8, 0.5), (0.9, 0.8)]))
    assert "<!-- 90/80 -->" in drawing
    assert "break-even" not in drawing, "which is for equal sparsities"


def test_no_break_even_no_star(tmp_path: Path) -> None:
    assert "break-even" not in text_of(tmp_path / "a.svg", made_up([(0.8, 0.8)], crossing=None))


def test_other_suites_and_endings_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="this report is of the suite select"):
        plot.plot(Report("select", {}), tmp_path / "a.svg")
    with pytest.raises(ValueError, match=r"ends in \.svg, \.png, \.pdf, got a\.txt"):
        plot.plot(made_up([(0.8, 0.8)]), tmp_path / "a.txt")


def test_without_matplotlib_the_error_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ImportError, match=r"pip install topkast\[plots\]"):
        plot.check_plot(tmp_path / "a.svg")
