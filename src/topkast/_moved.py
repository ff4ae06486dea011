"""Modules that have moved, under the names by which programs and pickled models may still ask for them.

Nothing is imported before it is asked for. The module that an old name gives is the new one itself, so
that classes are the same whichever way they were reached.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

MOVED = {
    "topkast.convert.flops": "topkast.cost.flops",
    "topkast.convert.memory": "topkast.cost.memory",
    "topkast.convert.parameters": "topkast.cost.parameters",
    "topkast.convert.stats": "topkast.cost.parameters",
    "topkast.core.accounting": "topkast.cost.accounting",
    "topkast.data.decoded": "topkast.data.imagenet",
    "topkast.data.digits": "topkast.data.images",
    "topkast.data.stdlib_text": "topkast.data.plain_text",
    "topkast.models.decoder": "topkast.models.simple",
    "topkast.models.mlp": "topkast.models.simple",
    "topkast.models.resnet_small": "topkast.models.resnet",
    "topkast.nn.conv": "topkast.nn.layers",
    "topkast.nn.embedding": "topkast.nn.layers",
    "topkast.nn.linear": "topkast.nn.layers",
    "topkast.planning": "topkast.cost",
    "topkast.planning.forecast": "topkast.cost.forecast",
}


class _Moved(MetaPathFinder, Loader):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        return ModuleSpec(fullname, self) if fullname in MOVED else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module = import_module(MOVED[spec.name])
        # The import system gives the module this spec; `exec_module` gives it its own back.
        spec.loader_state = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        spec = module.__spec__
        assert spec is not None
        module.__spec__ = spec.loader_state


# First: a package's old name has the new one's folder, in which others would find its files again.
sys.meta_path.insert(0, _Moved())
