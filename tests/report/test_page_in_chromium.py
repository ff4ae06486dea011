"""The pages as a reader sees them: nothing wider than the screen, nothing on the console, nothing loaded."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import chromium
import pytest
import synthetic_runs as made

from topkast.report import read_run, write_comparison, write_report

# How wide the page would like to be, and what the background and a figure's card look like.
LOOK = """[document.scrollingElement.scrollWidth, getComputedStyle(document.body).backgroundColor,
    getComputedStyle(document.querySelector('figure')).backgroundColor,
    Math.min(...[...document.querySelectorAll('figure svg')].map(s => s.getBoundingClientRect().width))]"""


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[chromium.Browser]:
    program = chromium.find()
    if program is None:
        pytest.skip("no Chromium on this machine: install Debian's `chromium` to see the pages")
    with chromium.Browser(program, tmp_path_factory.mktemp("profile")) as found:
        yield found


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("runs")
    names = [f"encoder.layers.{i}.{'self_attention_' * 8}projection" for i in range(60)]
    events = made.ordinary(names, name="A run whose name says everything about all of its settings, " * 3)
    runs = [
        read_run(made.write(folder / "many", events)),
        read_run(made.write(folder / "dense", made.dense())),
    ]
    return [write_report(runs[0]), write_comparison(runs, folder / "comparison.html")]


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [390, 1280])
def test_pages_fit_the_screen_and_are_quiet(
    browser: chromium.Browser, pages: list[Path], width: int, dark: bool
) -> None:
    for page in pages:
        seen = browser.see(page, width, dark=dark, script=LOOK)
        assert seen.complaints == []
        assert seen.requests == [page.resolve().as_uri()]
        wanted, background, card, narrowest = seen.value
        assert wanted <= width
        assert background == ("rgb(21, 23, 26)" if dark else "rgb(250, 250, 248)")
        assert card == "rgb(255, 255, 255)"
        assert narrowest > 300
        assert seen.picture.startswith(b"\x89PNG")
