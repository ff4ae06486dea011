"""The rules of the house that a machine can check."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

import topkast

SOURCE = Path(topkast.__file__).parent
# From the top of the house to its foundation. A part may import itself and every layer below its
# own; parts of one layer do not know of each other. `reproduce` stands above `report` because its
# pages are made by the report's renderer, in its style, and its outcomes by its reader of runs.
LAYERS = (
    ("cli",),
    ("reproduce",),
    ("train", "bench", "report"),
    ("data", "models", "integrations"),
    ("store",),
    ("convert",),
    ("cost",),
    ("nn", "methods"),
    ("core",),
    ("kernels",),
    ("text", "extras"),
)
# The package as its users see it: above all layers, imported by none of them.
ROOT = {"__init__", "__main__", "_moved", "distributed"}
FILES = sorted(SOURCE.rglob("*.py"))

# File names that occur more than once, and why. A name that no longer does must leave the list.
SAME_NAMES = {
    "memory.py": "a suite of the benchmarks is named as what it measures",
    "base.py": "of methods, and of layers",
    "plan.py": "a command, and the kernels' contract",
    "select.py": "a suite of the benchmarks is named as what it measures",
}
# Folders that hold a design, each with a README: what belongs there, what it promises.
DESIGNS = (
    *("core", "kernels", "kernels/native", "nn", "methods", "cost", "convert", "store"),
    *("data", "models", "integrations", "train", "bench", "report", "reproduce"),
)


# ---- layers --------------------------------------------------------------------------------------------


def part_of(path: Path, source: Path = SOURCE) -> str:
    """The folder or single file of the package that a file belongs to."""
    return path.relative_to(source).parts[0].removesuffix(".py")


def imported_parts(text: str) -> set[str]:
    """The parts of the package that a file's imports name; "" is the package itself."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports name the whole path"
            # In `from topkast import nn` the part is the name.
            names.update(f"{node.module}.{alias.name}" for alias in node.names)
    return {name.partition(".")[2].split(".")[0] for name in names if name.split(".")[0] == "topkast"}


def allowed_parts(part: str) -> set[str]:
    """What a part may import: itself and every layer below."""
    level = next(i for i, layer in enumerate(LAYERS) if part in layer)
    return {part}.union(*LAYERS[level + 1 :])


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(SOURCE)))
def test_dependencies_point_down(path: Path) -> None:
    part = part_of(path)
    if part not in ROOT:
        assert imported_parts(path.read_text()) <= allowed_parts(part)


def test_every_part_has_its_layer() -> None:
    parts = {part_of(p) for p in FILES} - ROOT
    listed = [part for layer in LAYERS for part in layer]
    assert sorted(parts) == sorted(listed)


@pytest.mark.parametrize(
    ("part", "line", "is_allowed"),
    [
        ("data", "from topkast.store.files import replaced", True),
        ("data", "from topkast.data.batches import Order", True),
        ("data", "from topkast.models.network import Network", False),  # a sibling
        ("store", "from topkast.data import datasets", False),  # above
        ("store", "def f():\n    import topkast.train.job", False),  # late, and above all the same
        ("core", "from topkast import nn", False),
        ("core", "from topkast import sparsify", False),  # the package, which is on top of all
        ("core", "import topkast", False),
        ("core", "import torch", True),
    ],
)
def test_the_rule_of_layers_notices(part: str, line: str, is_allowed: bool) -> None:
    assert (imported_parts(line) <= allowed_parts(part)) is is_allowed


# ---- files ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(SOURCE)))
def test_files_say_what_they_are_and_hold_one_idea(path: Path) -> None:
    text = path.read_text()
    assert ast.get_docstring(ast.parse(text)), "a file starts with what it is for"
    assert len(text.splitlines()) <= 400, "a file this long holds a second idea"


def repeated_names(paths: list[Path]) -> Iterator[str]:
    """File names that several folders have."""
    places: defaultdict[str, int] = defaultdict(int)
    for path in paths:
        places[path.name] += 1
    return (name for name, count in places.items() if count > 1 and name != "__init__.py")


def test_a_file_name_occurs_once_or_is_listed_with_a_reason() -> None:
    assert sorted(repeated_names(FILES)) == sorted(SAME_NAMES)


def test_a_name_that_occurs_twice_is_noticed() -> None:
    paths = [Path(name) for name in ("a/__init__.py", "b/__init__.py", "a/x.py", "b/x.py", "b/y.py")]
    assert list(repeated_names(paths)) == ["x.py"]


# The wheel leaves them out.
needs_readmes = pytest.mark.skipif(SOURCE.parent.name != "src", reason="READMEs are in the sources only")


@needs_readmes
@pytest.mark.parametrize("folder", DESIGNS)
def test_a_folder_that_holds_a_design_says_what_belongs_there(folder: str) -> None:
    lines = (SOURCE / folder / "README.md").read_text().splitlines()
    assert lines[0].split(":")[0] == f"# {folder}"
    assert any(line.startswith("Promises: ") for line in lines)
    assert 8 <= len(lines) <= 24, "about ten lines: it is read before the files"
    assert max(map(len, lines)) <= 100


@needs_readmes
@pytest.mark.parametrize("folder", DESIGNS)
def test_files_that_a_readme_names_are_there(folder: str) -> None:
    text = (SOURCE / folder / "README.md").read_text()
    for name in re.findall(r"`([\w/.]+\.(?:py|cpp|hpp|toml|md))`", text):
        assert (SOURCE / folder / name).exists() or (SOURCE.parents[1] / name).exists(), name


def test_public_names_are_there_and_documented() -> None:
    for name in topkast.__all__:
        assert getattr(topkast, name).__doc__
    assert re.fullmatch(r"\d+\.\d+\.\d+", topkast.__version__)
