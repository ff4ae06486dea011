"""Every snippet in README and docs runs, and every link between them leads somewhere."""

from __future__ import annotations

import doctest
import importlib
import pkgutil
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import topkast
from topkast.cli.main import main

ROOT = Path(__file__).resolve().parents[1]
PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "CHANGELOG.md",
    *sorted((ROOT / "docs").glob("*.md")),
]
# Snippets that run when the site is built, in test_site.py: once is enough.
BUILT = {"tutorial.md"}


def snippets(page: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(), flags=re.MULTILINE | re.DOTALL)


def surroundings() -> dict[str, Any]:
    """What a reader has around a snippet: a network, data, a criterion."""
    return {
        "Net": lambda: nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 5)),
        "loader": [(torch.randn(32, 20), torch.randint(5, (32,))) for _ in range(4)],
        "criterion": nn.CrossEntropyLoss(),
    }


def make_run(folder: Path) -> None:
    """A run that a reader may have made before."""
    sizes = ["--width", "16", "--depth", "1", "--heads", "2", "--window", "8", "--batch", "4"]
    done = main(
        ["train", "--out", str(folder), "--steps", "4", *sizes, "--limit", "9000", "--reference", "none",
         "--quiet", "--no-report"]
    )  # fmt: skip
    assert done == 0


# Of peft: what it reads of transformers by an old name.
@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")
# Of Lightning: what it still calls in torch, and advice for larger machines.
@pytest.mark.filterwarnings("ignore:.isinstance.treespec, LeafSpec.. is deprecated:FutureWarning")
@pytest.mark.filterwarnings("ignore:.*does not have many workers")
@pytest.mark.parametrize("page", [p for p in PAGES if p.name not in BUILT], ids=lambda p: p.name)
def test_python_snippets_run(page: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    namespace = surroundings()
    if '"RUN"' in page.read_text():
        make_run(tmp_path / "RUN")
    for snippet in snippets(page, "python"):
        exec(compile(snippet, str(page), "exec"), namespace)


def test_both_sides_of_the_readme_diff_run() -> None:
    (diff,) = snippets(ROOT / "README.md", "diff")
    sides = {
        sign: [line[1:] for line in diff.splitlines() if not line.startswith(other)]
        for sign, other in ("+-", "-+")
    }
    for lines in sides.values():
        exec(compile("\n".join(lines), "README diff", "exec"), surroundings())
    changed = sum(line.startswith("+") for line in diff.splitlines())
    assert changed <= 4, "a loop changes in four lines at most"


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_links_within_the_project_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)", page.read_text()):
        if "://" not in target:
            assert (page.parent / target).exists() or _is_installed(target), f"{page.name} links to {target}"


def _is_installed(target: str) -> bool:
    """Whether a link to the source leads to a file of the package, where tests run without the source."""
    inside = target.removeprefix("../src/topkast/")
    package = Path(topkast.__file__).parent
    return not (ROOT / "src").exists() and inside != target and (package / inside).exists()


def test_examples_in_docstrings_run() -> None:
    ran = 0
    for module in pkgutil.walk_packages(topkast.__path__, "topkast."):
        if module.name != "topkast.__main__":
            ran += doctest.testmod(importlib.import_module(module.name), raise_on_error=True).attempted
    assert ran
