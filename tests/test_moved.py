"""Names that were documented once can still be imported."""

from __future__ import annotations

import importlib
import subprocess
import sys

import pytest

DOCUMENTED = {
    "topkast.convert.flops": "dense_flops",
    "topkast.convert.memory": "Memory",
    "topkast.convert.parameters": "parameters",
    "topkast.convert.stats": "LayerStats",
    "topkast.core.accounting": "Flops",
    "topkast.planning.forecast": "forecast",
}


@pytest.mark.parametrize("module", DOCUMENTED)
def test_a_module_that_has_moved_has_its_names(module: str) -> None:
    found = getattr(importlib.import_module(module), DOCUMENTED[module])
    assert found.__module__.startswith("topkast.cost.")


def test_both_ways_to_import_work_first_thing() -> None:
    lines = (
        "from topkast.planning.forecast import forecast",
        "import topkast.planning.forecast as again",
        "assert topkast.planning.forecast is again and again.forecast is forecast",
    )
    subprocess.run([sys.executable, "-c", "\n".join(("import topkast", *lines))], check=True)
    subprocess.run([sys.executable, "-c", lines[0]], check=True)
