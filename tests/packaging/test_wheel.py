"""The sdist is complete, the wheel has what it should, and it works where there is nothing else of topkast."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src" / "topkast"
# What is run on the installed wheel from another folder: every engine, the runtime, a file that is data. All of the
# tests are run by `make wheel-check`.
SUBSET = ["nn/test_layers.py", "packaging/test_openmp.py", "reproduce/test_claims.py"]
# Half a minute of compiling, which on a machine that is busy otherwise may be several.
pytestmark = pytest.mark.timeout(1800)
# Prints where Python finds the package, its compiled core and its metadata.
WHERE = """
import importlib.metadata, json, topkast
from topkast.kernels import _native
found = importlib.metadata.distribution("topkast")
print(json.dumps([topkast.__file__, _native.__file__, str(found.locate_file("topkast/py.typed"))]))
"""


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The sdist, and the wheel that was built from it."""
    out = tmp_path_factory.mktemp("dist")
    # Not isolated: the tools are here already, in the versions that pyproject.toml asks for.
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", out, ROOT]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    (sdist,), (wheel,) = out.glob("*.tar.gz"), out.glob("*.whl")
    return sdist, wheel


@pytest.fixture(scope="module")
def python(built: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of an environment with the wheel, and with this one's packages except topkast."""
    folder = tmp_path_factory.mktemp("clean")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder / "venv"], check=True)
    python = folder / "venv" / "bin" / "python"
    install = [
        sys.executable,
        "-m",
        "pip",
        "--python",
        python,
        "install",
        "--quiet",
        "--no-deps",
        "--no-index",
    ]
    subprocess.run([*install, built[1]], check=True)
    dependencies = folder / "dependencies"
    dependencies.mkdir()
    for entry in Path(sysconfig.get_path("purelib")).iterdir():
        if "topkast" not in entry.name and entry.suffix != ".pth":
            (dependencies / entry.name).symlink_to(entry)
    (site,) = (folder / "venv").glob("lib/python*/site-packages")
    (site / "dependencies.pth").write_text(f"{dependencies}\n")
    return python


def test_wheel_and_sdist_hold_what_they_should(built: tuple[Path, Path]) -> None:
    sdist, wheel = built
    assert re.fullmatch(r"topkast-[\d.]+-cp310-abi3-(linux|macosx)_\w+\.whl", wheel.name)
    with zipfile.ZipFile(wheel) as archive:
        in_wheel = {name for name in archive.namelist() if ".dist-info/" not in name}
    ours = {
        f"topkast/{path.relative_to(SOURCE).as_posix()}"
        for path in SOURCE.rglob("*")
        if path.is_file() and path.suffix not in (".cpp", ".hpp", ".md", ".pyc")
    }
    assert {"topkast/py.typed", "topkast/reproduce/published.toml"} < ours
    assert in_wheel == ours | {"topkast/kernels/_native.abi3.so"}
    with tarfile.open(sdist) as archive:
        in_sdist = {name.partition("/")[2] for name in archive.getnames()}
    assert {"CMakeLists.txt", "LICENSE", "README.md", "src/topkast/kernels/native/plan.cpp"} < in_sdist
    assert not {name for name in in_sdist if name.startswith(("tests", ".ci", ".github", "site"))}


def test_compiled_core_keeps_to_the_stable_abi(built: tuple[Path, Path]) -> None:
    command = [sys.executable, "-m", "abi3audit", "--strict", "--report", built[1]]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    (audited,) = next(iter(json.loads(ran.stdout)["specs"].values()))["wheel"]
    assert audited["name"].endswith("_native.abi3.so")
    assert audited["result"]["is_abi3"]


def test_installed_wheel_passes_tests_from_another_folder(python: Path, tmp_path: Path) -> None:
    shutil.copytree(ROOT / "tests", tmp_path / "tests", ignore=shutil.ignore_patterns("__pycache__"))
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("PYTEST", "PYTHON"))}

    def run(*command: object) -> str:
        ran = subprocess.run(
            [str(part) for part in command],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert ran.returncode == 0, ran.stdout + ran.stderr
        return ran.stdout

    for path in json.loads(run(python, "-c", WHERE)):
        assert Path(path).is_relative_to(python.parents[1]), f"{path} is not the wheel's"
    assert "native" in run(python.with_name("topkast"), "info")
    options = ["-c", ROOT / "pyproject.toml", "--rootdir", tmp_path, "-p", "no:cacheprovider", "-q"]
    printed = run(python, "-m", "pytest", *options, *(tmp_path / "tests" / name for name in SUBSET))
    passed = int(re.findall(r"(\d+) passed", printed)[0])
    assert passed > 50, printed


def test_the_tools_here_are_those_that_build_the_package() -> None:
    """Else the wheel of these tests is not the wheel of `pip install`."""
    import tomllib
    from importlib.metadata import version

    for requirement in tomllib.loads((ROOT / "pyproject.toml").read_text())["build-system"]["requires"]:
        name, wanted = requirement.split("==")
        assert version(name) == wanted
