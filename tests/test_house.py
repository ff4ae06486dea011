"""The rules of the house that a machine can check."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

import topkast

SOURCE = Path(topkast.__file__).parent
# From the top of the house to its foundation; a part may import itself and what is below it.
FLOORS = [
    "cli",
    "reproduce",
    "report",
    "bench",
    "integrations",
    "train",
    "models",
    "data",
    "store",
    "convert",
    "cost",
    "methods",
    "nn",
    "core",
    "kernels",
    "text",
]
FILES = sorted(SOURCE.rglob("*.py"))


def imported_parts(path: Path) -> set[str]:
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module)
        elif isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
    return {name.split(".")[1] for name in names if name.startswith("topkast.")}


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(SOURCE)))
def test_dependencies_point_down(path: Path) -> None:
    part = path.relative_to(SOURCE).parts[0].removesuffix(".py")
    if part not in FLOORS:  # the package itself, at the very top
        return
    allowed = set(FLOORS[FLOORS.index(part) :])
    assert imported_parts(path) <= allowed


def test_every_part_has_its_floor() -> None:
    parts = {p.name for p in SOURCE.iterdir() if p.is_dir() and p.name != "__pycache__"}
    assert parts | {"text"} == set(FLOORS)  # which is a single file


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(SOURCE)))
def test_files_say_what_they_are_and_hold_one_idea(path: Path) -> None:
    text = path.read_text()
    assert ast.get_docstring(ast.parse(text)), "a file starts with what it is for"
    assert len(text.splitlines()) <= 400, "a file this long holds a second idea"


def test_public_names_are_there_and_documented() -> None:
    for name in topkast.__all__:
        assert getattr(topkast, name).__doc__
    assert re.fullmatch(r"\d+\.\d+\.\d+", topkast.__version__)
