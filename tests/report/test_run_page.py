from __future__ import annotations

import math
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
import synthetic_runs as made
from matplotlib.figure import Figure

from topkast.cli.main import main
from topkast.report import read_run, write_report
from topkast.report.charts import memory_figure
from topkast.report.drawings import DENSE, LINES, label, looks, svg_element
from topkast.report.page import every_drawing, notes, of_one
from topkast.report.summary import is_finished, layer_rows, sentence, settings, state, tiles
from topkast.store.run import is_dense

OF_ONE = {
    *(f"{what}_by_{axis}" for what in ("loss", "quality") for axis in ("step", "flops", "time")),
    *("mask_change", "reservoir_use", "weight_size", "memory", "step_time"),
}
HOSTILE = "</title><script>alert(1)</script><!-- --> $\\frac{ & \" ' \x00 \ud800 \N{BELL} 中"


class Page(HTMLParser):
    """The tags, identifiers and words of a page."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.ids: list[str] = []
        self.links: list[str] = []
        self.words = ""
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.ids += [value or "" for key, value in attrs if key == "id"]
        self.links += [value or "" for key, value in attrs if key in ("src", "href", "xlink:href")]

    def handle_data(self, data: str) -> None:
        self.words += data.replace("\N{NO-BREAK SPACE}", " ")


def page_of(folder: Path, events: list[made.Event], tail: str = "") -> Page:
    return Page(write_report(read_run(made.write(folder, events, tail))))


def test_the_command_writes_page_and_figures_and_prints_the_path(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = made.write(tmp_path / "run", made.ordinary())
    assert main(["report", str(folder)]) == 0
    assert capsys.readouterr().out == f"{folder / 'report.html'}\n"
    assert {path.name for path in (folder / "figures").iterdir()} == {
        f"{name}.{kind}" for name in OF_ONE for kind in ("svg", "png")
    }
    page = Page(folder / "report.html")
    assert page.tags.count("svg") == len(OF_ONE)
    assert "script" not in page.tags
    assert all(link.startswith("#") for link in page.links), "nothing outside the page is asked for"
    assert len(page.ids) == len(set(page.ids))
    assert {link[1:] for link in page.links} <= set(page.ids)


def test_the_page_says_the_main_numbers(tmp_path: Path) -> None:
    words = page_of(tmp_path / "run", made.ordinary()).words
    assert (
        "Top-KAST 90/80, on the task “text”, reached 2.530 held-out bits per byte (lower is better) in 400 steps, "
        "against 2.830 for fixed random mask and 2.430 for dense. It takes 15.1 % of the parameters, 18.3 % of "
        "the FLOPs, 57 % of the bytes and 71.1 % of the time per step of the dense network." in words
    )
    for figure in (
        "80,000",
        "15.1 % of 530,000",
        "3.86 MB",
        "64 ms",
        "32,000 tokens per second",
        "1.67 GFLOP",
    ):
        assert figure in words
    assert "Figure 3a" in words
    assert "Figure 3b" in words
    assert "topkast train --config" in words
    assert "--resume" not in words
    assert "Made-up CPU @ 2.80GHz" in words


def test_the_page_has_every_setting_of_the_configuration(tmp_path: Path) -> None:
    page = page_of(tmp_path / "run", made.ordinary())
    run = read_run(tmp_path / "run")
    assert settings(run) == [
        ("task", "name", "text"),
        ("task", "window", "128"),
        ("method", "name", "topkast"),
        ("method", "forward_sparsity", "0.9"),
        ("method", "backward_sparsity", "0.8"),
        ("method", "refresh_every", "10"),
    ]
    assert "Settings" in page.words
    assert "method" + "refresh_every" + "10" in page.words


def test_settings_are_shown_as_words(tmp_path: Path) -> None:
    folder = made.write(tmp_path / "run", made.ordinary())
    config = 'format = 1\n[train]\neps = 1e-08\nhidden = [256, 128]\nskip = []\nletter = false\n[train.more]\na = "b"'
    (folder / "config.toml").write_text(config)
    assert settings(read_run(folder)) == [
        ("", "format", "1"),
        ("train", "eps", "1e-08"),
        ("train", "hidden", "256, 128"),
        ("train", "skip", "none"),
        ("train", "letter", "no"),
        ("train.more", "a", "b"),
    ]
    (folder / "config.toml").write_text("not = [toml")
    assert settings(read_run(folder)) == []
    assert "not = [toml" in Page(write_report(read_run(folder))).words


def test_settings_and_layers_say_what_auto_chose_where_it_was_recorded(tmp_path: Path) -> None:
    start, point = made.start(layers=["a", "b", "c"]), made.progress(50, ["a", "b", "c"])
    start["layers"] = {name: {**layer, "engine": "auto"} for name, layer in start["layers"].items()}
    end = {**made.end(), "engines": {"a": "auto: native", "b": "auto: csr", "c": "auto: native"}}
    folder = made.write(tmp_path / "run", [start, point, end])
    (folder / "config.toml").write_text('[method]\nengine = "auto"')
    run = read_run(folder)
    engines = ("auto: native", "auto: csr", "auto: native")
    assert all(engine in row for row, engine in zip(layer_rows(run), engines, strict=True))
    ((*_, value),) = settings(run)
    assert value == "auto: native for 2 of 3 layers and csr for 1 of 3 layers"
    folder = made.write(tmp_path / "before", [start, made.progress(50, ["a", "b", "c"])])
    (folder / "config.toml").write_text('[method]\nengine = "auto"')
    assert settings(read_run(folder)) == [("method", "engine", "auto")]


def test_per_cent_stands_with_its_number(tmp_path: Path) -> None:
    images = made.start(task="images", quality_name="accuracy, %", higher_is_better=True)
    points = [{**made.progress(step), "quality": quality} for step, quality in ((50, 97.5), (100, 15))]
    run = read_run(made.write(tmp_path / "run", [images, *points]))
    assert "reached 15.0\N{NO-BREAK SPACE}% held-out accuracy (higher is better) in 100 steps" in sentence(
        run
    )
    assert tiles(run)[0].notes == ["best: 97.5 at step 50", "higher is better"]


def test_a_dense_run_has_no_sets_to_show(tmp_path: Path) -> None:
    page = page_of(tmp_path / "run", made.dense())
    names = {path.stem for path in (tmp_path / "run" / "figures").iterdir()}
    assert names == {name for name in OF_ONE if "_by_" in name}
    assert "Layers" not in page.words
    assert "of dense" not in page.words


def test_a_killed_run_says_so_and_how_to_go_on(tmp_path: Path) -> None:
    page = page_of(tmp_path / "run", [made.start(), made.progress(50)], tail='{"ev')
    assert "It has not ended: 50 of 400 steps are recorded." in page.words
    assert "Line 3 of metrics.jsonl was cut off" in page.words
    assert "topkast train --resume" in page.words


def test_a_stopped_run_says_so(tmp_path: Path) -> None:
    events = [made.start(), made.progress(50), made.end(step=50, stopped="SIGINT")]
    run = read_run(made.write(tmp_path / "run", events))
    assert state(run) == "It was stopped after 50 of 400 steps: SIGINT."
    assert notes(run) == []
    assert not is_finished(run)


def test_values_that_are_not_finite_leave_a_gap_and_a_note(tmp_path: Path) -> None:
    points = [made.progress(step) for step in (50, 100, 150, 200)]
    points[1]["quality"], points[2]["quality"], points[3]["quality"] = math.inf, -math.inf, math.nan
    points[3]["loss"] = math.nan
    page = page_of(tmp_path / "run", [made.start(), *points])
    assert (
        "3 of 4 records, the first at step 100, have a loss or held-out quality that is not finite"
        in page.words
    )
    assert "reached not a number held-out bits per byte" in page.words


def test_a_run_without_any_finite_value_still_has_a_page(tmp_path: Path) -> None:
    nothing = dict.fromkeys(("changed", "used", "activated", "mean_a", "mean_explored"))
    point = {**made.progress(50), "quality": None, "loss": None, "flops": None, "seconds": None}
    point["layers"] = {"a": nothing}
    assert page_of(tmp_path / "run", [made.start(layers=["a"]), point]).tags.count("svg") > 5


def test_many_layers_with_long_names_are_all_in_the_table(tmp_path: Path) -> None:
    names = [f"encoder.layers.{i}.{'self_attention_' * 8}projection" for i in range(60)]
    page = page_of(
        tmp_path / "run", [made.start("r" * 200, names), made.progress(50, names), made.end(names)]
    )
    assert all(name in page.words for name in names)


def test_hostile_names_are_words_not_markup(tmp_path: Path) -> None:
    events = made.ordinary([HOSTILE], name=HOSTILE, unit=HOSTILE, quality_name=HOSTILE, task=HOSTILE)
    events[-2]["run"] = HOSTILE + "reference"
    events[-1]["stopped"] = HOSTILE
    folder = made.write(tmp_path / "run", events)
    (folder / "config.toml").write_text("</pre><script>alert(2)</script>")
    (folder / "environment.json").write_text('{"<script>": "<img src=x onerror=alert(3)>"}')
    page = Page(write_report(read_run(folder)))
    assert not {"script", "img", "iframe"} & set(page.tags)
    assert "<script>alert(1)</script>" in page.words
    assert "<script>alert(2)</script>" in page.words
    assert page.tags.count("svg") == len(OF_ONE)
    for path in (folder / "figures").glob("*.svg"):
        assert "<script" not in path.read_text()


def test_the_same_run_gives_the_same_page(tmp_path: Path) -> None:
    run = read_run(made.write(tmp_path / "run", [made.start(), made.progress(50), made.progress(100)]))
    first = write_report(run).read_bytes()
    assert write_report(run, tmp_path / "other.html").read_bytes() == first


def test_every_drawing_is_a_figure_with_a_caption(tmp_path: Path) -> None:
    run = read_run(made.write(tmp_path / "run", made.ordinary()))
    drawings = every_drawing(of_one(run))
    assert {drawing.name for drawing in drawings} == OF_ONE
    assert all(isinstance(d.figure, Figure) and d.title and d.caption.endswith(".") for d in drawings)


def test_axes_have_units_and_bars_add_up(tmp_path: Path) -> None:
    run = read_run(made.write(tmp_path / "run", made.ordinary()))
    labels = {d.name: d.figure.axes[0].get_xlabel() for d in every_drawing(of_one(run))}
    assert labels["quality_by_step"] == "step"
    assert labels["quality_by_flops"] == "FLOPs spent, TFLOP (logarithmic)"
    assert labels["quality_by_time"] == "training time, s"
    assert labels["memory"] == "memory, MB"
    assert labels["step_time"] == "time per step, ms"
    assert run.bytes is not None
    bars = memory_figure(run, run.bytes).axes[0].patches
    ends = {round(bar.get_y(), 2): bar.get_x() + bar.get_width() for bar in bars}
    assert list(ends.values()) == pytest.approx([run.bytes.sparse / 1e6, run.bytes.dense / 1e6, 2.1])


def test_labels_are_short_and_printable() -> None:
    assert label("dense") == "dense"
    assert label("a\nb\x00") == "a b"
    assert label("\x00") == "unnamed"
    assert label("x" * 50 + "tail", 20) == "x" * 13 + "…" + "xxtail"


def test_dense_looks_alike_wherever_it_stands() -> None:
    for names in (["dense", "a", "b"], ["a", "dense", "b"], ["a", "b", "Dense "]):
        found = looks(names)
        assert next(found[name] for name in names if is_dense(name)) == DENSE
        assert [found[name] for name in "ab"] == LINES[:2]
    assert len(looks(map(str, range(20)))) == 20


def test_an_svg_element_keeps_to_itself() -> None:
    text = (
        '<?xml version="1.0"?><!DOCTYPE svg><svg width="1pt" height="2pt" viewBox="0 0 1 2"><!-- a > b -->'
        '<metadata>m</metadata><g id="a"/><use xlink:href="#a"/><g clip-path="url(#a)"/></svg>\n'
    )
    element = svg_element(text, "name", 'a "title"')
    assert element == (
        '<svg viewBox="0 0 1 2" role="img" aria-label="a &quot;title&quot;">'
        '<g id="name-a"/><use xlink:href="#name-a"/><g clip-path="url(#name-a)"/></svg>'
    )


def test_out_must_be_a_file_in_a_folder_that_exists(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = made.write(tmp_path / "run", [made.start(), made.progress(50)])
    assert main(["report", str(folder), "--out", str(tmp_path / "no" / "page.html")]) == 2
    assert re.search(
        r"^topkast report: --out: the folder .*no does not exist; create it first$", capsys.readouterr().err
    )
    assert main(["report", str(folder), "--out", str(tmp_path)]) == 2
    assert "--out takes a file" in capsys.readouterr().err
    assert main(["report", str(tmp_path)]) == 2
    assert re.fullmatch(r"topkast report: .* is not a run: .*\n", capsys.readouterr().err)


def test_without_matplotlib_the_way_out_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "matplotlib", None)
    assert main(["report", str(tmp_path)]) == 2
    assert "pip install topkast[plots]" in capsys.readouterr().err
