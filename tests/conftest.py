"""What all tests share: fixed seeds, the engines, and where real data is."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from hypothesis import settings

from topkast.kernels.engines import ENGINES

# Machines differ in speed; a slow example is not a failure.
settings.register_profile("topkast", deadline=None, derandomize=True)
settings.load_profile("topkast")


@pytest.fixture(autouse=True)
def _fixed_seed() -> None:
    torch.manual_seed(0)


@pytest.fixture
def one_thread() -> Iterator[None]:
    """For what is tiny, where other threads would only wait."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def threads() -> Iterator[None]:
    """For tests that set their number."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.fixture(params=sorted(ENGINES))
def engine(request: pytest.FixtureRequest) -> str:
    """Every engine there is: a new one is tested by being registered."""
    return request.param


@pytest.fixture
def data_folder() -> Path:
    """The folder with real data sets: TOPKAST_DATA, or `shared/data` beside the project."""
    beside = Path(__file__).resolve().parents[2] / "shared" / "data"
    folder = Path(os.environ.get("TOPKAST_DATA", beside))
    if not folder.is_dir():
        pytest.skip(f"no data sets in {folder}: set TOPKAST_DATA to a folder that has them")
    return folder
