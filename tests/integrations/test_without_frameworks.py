"""Frameworks are needed by their own module alone, and what is missing is named."""

from __future__ import annotations

import importlib
import subprocess
import sys

import pytest

MODULES = {
    "topkast.integrations.huggingface.callback": ("transformers", "huggingface"),
    "topkast.integrations.huggingface.pretrained": ("transformers", "huggingface"),
    "topkast.integrations.lightning": ("lightning.pytorch", "lightning"),
}


@pytest.mark.parametrize("name", MODULES)
def test_a_missing_framework_is_named(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    importlib.import_module(name)
    framework, extra = MODULES[name]
    monkeypatch.setitem(sys.modules, framework, None)
    package = name.removesuffix(".callback").removesuffix(".pretrained")
    for loaded in [module for module in sys.modules if module.startswith(package)]:
        monkeypatch.delitem(sys.modules, loaded)
    with pytest.raises(
        ImportError, match=rf"{name.rsplit('.', 1)[0]}.* needs .*pip install 'topkast\[{extra}\]'"
    ):
        importlib.import_module(name)


def test_topkast_alone_imports_none_of_them() -> None:
    code = "import sys, topkast, topkast.integrations; print(sorted({'transformers', 'accelerate', 'lightning'} & set(sys.modules)))"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"
