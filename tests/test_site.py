"""The documentation site builds without a warning, has every public name, and loads nothing from elsewhere."""

from __future__ import annotations

import importlib
import inspect
import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest

from report.chromium import Browser, find

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
PUBLIC = (
    "topkast",
    "topkast.nn",
    "topkast.models",
    "topkast.distributed",
    "topkast.integrations.huggingface",
)
pytestmark = pytest.mark.timeout(1200)  # the tutorial is trained while the site is built
# Attributes by which a page loads something, as opposed to links that a reader may follow.
LOADING = {"script": "src", "img": "src", "link": "href", "iframe": "src", "source": "src", "object": "data"}


class Loads(HTMLParser):
    """Addresses that a page loads by itself."""

    def __init__(self) -> None:
        super().__init__()
        self.addresses: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.addresses += [value or "" for key, value in attrs if LOADING.get(tag) == key]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built site. A warning, such as a link that leads nowhere or a page that no menu has, is an error."""
    folder = tmp_path_factory.mktemp("site")
    ran = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", folder],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "WARNING" not in ran.stderr, ran.stderr  # with --quiet mkdocs would not see its own warnings
    return folder


def check_pages(site: Path) -> None:
    assert {page.stem for page in DOCS.glob("*.md")} <= {page.stem for page in site.glob("*.html")}
    assert not list(site.glob("*.py"))


def check_loads(site: Path) -> None:
    for page in site.glob("*.html"):
        loads = Loads()
        loads.feed(page.read_text())
        assert loads.addresses
        assert not [address for address in loads.addresses if re.match(r"(\w+:)?//", address)], page.name
    for sheet in site.rglob("*.css"):
        assert not re.search(r"(url\(|@import )[\"']?(\w+:)?//", sheet.read_text()), sheet.name


def check_names(site: Path) -> None:
    """Classes and functions, each with its own docstring."""
    page = (site / "api.html").read_text()
    headings = set(re.findall(r'<h3 id="[^"]+" class="doc doc-heading">\s*(?:<[^>]+>)?([\w.]+)', page))
    for module in PUBLIC:
        for name in importlib.import_module(module).__all__:
            path, value = f"{module}.{name}", getattr(importlib.import_module(module), name)
            if not name.startswith("__") and not inspect.ismodule(value):
                assert path in headings, path
                summary = value.__doc__.splitlines()[0]
                assert not inspect.isroutine(value) or summary.partition("`")[0] in page, path
    assert 'id="topkast.Handle.attach"' in page


def check_tutorial(site: Path) -> None:
    source, page = (DOCS / "tutorial.md").read_text(), (site / "tutorial.html").read_text()
    snippets = re.findall(r"^```python\n(.*?)^```", source, flags=re.MULTILINE | re.DOTALL)
    assert page.count(">prints<") == sum("print(" in snippet for snippet in snippets)
    assert page.count("data:image/svg+xml;base64,") == source.count(".savefig(")


def test_site_is_whole_and_loads_nothing_from_elsewhere(site: Path) -> None:
    check_pages(site)
    check_loads(site)
    check_names(site)
    check_tutorial(site)


def test_pages_fit_a_phone_and_ask_for_nothing_from_elsewhere(site: Path, tmp_path: Path) -> None:
    program = find()
    if program is None:
        pytest.skip("no Chromium on this machine: install Debian's `chromium` to see the pages")
    with Browser(program, tmp_path) as browser:
        for page in ("index.html", "tutorial.html", "concepts.html", "api.html"):
            seen = browser.see(site / page, 390, script="document.documentElement.scrollWidth")
            assert seen.value <= 390, page
            assert all(address.startswith(("file:", "data:")) for address in seen.requests), page
