"""Modules that have moved, under the names by which programs may still import them."""

import sys
from importlib import import_module

from topkast import cost
from topkast.cost import accounting, flops, forecast, memory, parameters

MOVED = {
    "topkast.convert.flops": flops,
    "topkast.convert.memory": memory,
    "topkast.convert.parameters": parameters,
    "topkast.convert.stats": parameters,
    "topkast.core.accounting": accounting,
    "topkast.planning": cost,
    "topkast.planning.forecast": forecast,
}
for _name, _module in MOVED.items():
    _package, _, _last = _name.rpartition(".")
    setattr(import_module(_package), _last, _module)
    sys.modules[_name] = _module
