"""What several tests of training read."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(scope="module")
def text_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("text") / "text.txt"
    path.write_bytes(b"the quick brown fox jumps over the lazy dog. " * 200)
    return path
