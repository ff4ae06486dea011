"""Names that were documented once can still be imported."""

from __future__ import annotations

import importlib
import pickle
import subprocess
import sys

import pytest

import topkast
from topkast._moved import MOVED

# A name that documentation or an example took from there.
DOCUMENTED = {
    "topkast.convert.flops": "dense_flops",
    "topkast.convert.memory": "Memory",
    "topkast.convert.parameters": "parameters",
    "topkast.convert.stats": "LayerStats",
    "topkast.core.accounting": "Flops",
    "topkast.data.decoded": "open_decoded",
    "topkast.data.digits": "digits",
    "topkast.data.stdlib_text": "stdlib_text",
    "topkast.planning.forecast": "forecast",
}


@pytest.mark.parametrize("module", DOCUMENTED)
def test_a_module_that_has_moved_has_its_names(module: str) -> None:
    found = getattr(importlib.import_module(module), DOCUMENTED[module])
    assert found.__module__ == MOVED[module]


@pytest.mark.parametrize("name", MOVED)
def test_an_old_name_is_the_new_module_itself(name: str) -> None:
    new = importlib.import_module(MOVED[name])
    assert importlib.import_module(name) is new
    assert new.__name__ == MOVED[name]
    assert new.__spec__ is not None
    assert new.__spec__.name == MOVED[name]


def test_both_ways_to_import_work_first_thing() -> None:
    lines = (
        "from topkast.planning.forecast import forecast",
        "import topkast.planning.forecast as again",
        "assert topkast.planning.forecast is again and again.forecast is forecast",
    )
    subprocess.run([sys.executable, "-c", "\n".join(("import topkast", *lines))], check=True)
    subprocess.run([sys.executable, "-c", lines[0]], check=True)


def test_a_pickled_class_is_found_under_its_old_name() -> None:
    content = pickle.dumps(topkast.nn.Linear)
    old = content.replace(b"topkast.nn.layers", b"topkast.nn.linear")  # of the same length
    assert old != content
    assert pickle.loads(old) is topkast.nn.Linear
