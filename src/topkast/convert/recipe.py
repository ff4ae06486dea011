"""How a model was made sparse, as plain data: what its state alone does not say.

A state_dict has values and positions; with the recipe the sparse model they belong to can be built again from
the dense one: by which method, which layers, with which sizes, reservoir and engine.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar

from torch import nn

from topkast import methods
from topkast.convert.handle import Handle
from topkast.convert.origin import Initialise
from topkast.convert.sparsify import sparsify
from topkast.core.anneal import Schedule
from topkast.core.implicit import ImplicitReservoir
from topkast.core.initial import Initial
from topkast.core.weight import SparseWeight
from topkast.kernels.engines import check_engine
from topkast.kernels.stream import KINDS
from topkast.methods.base import Method
from topkast.nn.attention import PROJECTIONS
from topkast.nn.find import find

FORMAT, VERSION = "topkast-recipe", 1
_T = TypeVar("_T")
_METHODS: dict[str, type[Method]] = {
    name: getattr(methods, name) for name in methods.__all__ if name != "Method"
}


def recipe(sparse: Handle) -> dict[str, Any]:
    """What `follow_recipe` needs to make the dense model sparse in the same way; ready for JSON.

    Raises:
        ValueError: The method is not one of topkast's own, so that no other process would know it.
    """
    name = type(sparse.method).__name__
    if _METHODS.get(name) is not type(sparse.method):
        raise ValueError(f"{name} is not a method of topkast: a file cannot say what it does")
    weights = {}
    for first, weight in sparse.weights.items():
        weights[first] = {
            "layers": [n for n, layer in sparse.layers.items() if layer.weight is weight],
            "shape": list(weight.shape),
            "forward": weight.target.forward,
            "backward": weight.target.backward,
            "engine": weight.engine,
            "initial": _initial_of(weight),
        }
    fields = [f.name for f in dataclasses.fields(sparse.method) if f.init]
    settings = {field: _plain(getattr(sparse.method, field)) for field in fields}
    return {
        "format": FORMAT,
        "version": VERSION,
        "method": {"name": name, "settings": settings},
        "weights": weights,
    }


def _plain(value: Any) -> Any:
    return value.to_data() if isinstance(value, Schedule) else value


def _initial_of(weight: SparseWeight) -> dict[str, Any] | None:
    if not isinstance(weight.reservoir, ImplicitReservoir):
        return None
    kind, scale, mass = weight.reservoir.initial.tolist()
    return {"kind": KINDS[int(kind)], "scale": scale, "mass": mass}


def follow_recipe(model: nn.Module, data: Any, initialise: Initialise | None = None) -> Handle:
    """Makes a dense model sparse as a recipe says. What it says is checked before anything is done.

    Args:
        model: Dense, changed in place. On the meta device if the recipe's reservoirs are implicit.
        data: From `recipe`, by way of a file perhaps.
        initialise: See `topkast.sparsify`.

    Raises:
        ValueError: It is no recipe, or not one for this model.
    """
    weights = _weights(data)
    method = _method(data)
    modules = _modules(model)
    for entry in weights.values():
        for layer in entry["layers"]:
            shape = getattr(getattr(modules.get(layer), "weight", None), "shape", None)
            if shape is None or list(shape) != entry["shape"]:
                raise ValueError(
                    f"the recipe has a layer {layer!r} of shape {tuple(entry['shape'])}, the model has "
                    f"{'none' if shape is None else tuple(shape)} there: it is of another model"
                )
        check_engine(entry["engine"])
    layers = {layer for entry in weights.values() for layer in entry["layers"]}
    initial = {n: _initial(n, entry["initial"]) for n, entry in weights.items() if entry.get("initial")}
    with _unfrozen({name: modules[name] for name in layers}) as frozen:
        sparse = sparsify(
            model,
            method,
            skip=lambda name, _: name not in layers,
            distribution={name: _sparsities(entry) for name, entry in weights.items()},
            reservoir="implicit" if is_implicit(data) else "stored",
            init=initial or None,
            initialise=initialise if initial else None,
        )
        for name in frozen & set(sparse.layers):
            sparse.layers[name].weight.requires_grad_(False)
    if list(sparse.weights) != list(weights):
        raise ValueError("the model's tied weights are not those of the recipe: it is of another model")
    for name, weight in sparse.weights.items():
        weight.engine = weights[name]["engine"]
    return sparse


def _modules(model: nn.Module) -> dict[str, nn.Module]:
    """By name, with the projections that attention is unpacked into."""
    modules = dict(model.named_modules())
    for path, attention in find(model).attentions.items():
        modules.update((f"{path}.{name}", getattr(attention, name)) for name in PROJECTIONS)
    return modules


@contextmanager
def _unfrozen(layers: Mapping[str, nn.Module]) -> Generator[set[str]]:
    """Lets `sparsify` take frozen weights that the recipe has as sparse: its state is to be loaded there."""
    weights = {n: m.weight for n, m in layers.items() if isinstance(m.weight, nn.Parameter)}
    frozen = {name: weight for name, weight in weights.items() if not weight.requires_grad}
    try:
        for weight in frozen.values():
            weight.requires_grad_(True)
        yield set(frozen)
    finally:
        for weight in frozen.values():
            weight.requires_grad_(False)


def is_implicit(data: Any) -> bool:
    """Whether a recipe is for a model on the meta device, whose dense weights never exist."""
    return any(entry.get("initial") for entry in _weights(data).values())


def _sparsities(entry: Mapping[str, Any]) -> tuple[float, float]:
    """Those that give back the very sizes, since they are rounded to whole elements."""
    numel = math.prod(entry["shape"])
    return 1 - entry["forward"] / numel, 1 - entry["backward"] / numel


# ---- what comes from a file -----------------------------------------------------------------------------


def _method(data: Any) -> Method:
    name = _field(data, "method", dict).get("name")
    if not isinstance(name, str) or name not in _METHODS:
        raise ValueError(f"the recipe's method is {name!r}; there are {', '.join(_METHODS)}")
    settings = _field(data["method"], "settings", dict)
    known = {f.name for f in dataclasses.fields(_METHODS[name]) if f.init}
    if unknown := sorted(set(settings) - known):
        raise ValueError(f"the recipe's method {name} has settings that it does not take: {unknown}")
    try:
        return _METHODS[name].from_settings(settings)
    except TypeError as error:
        raise ValueError(f"the recipe's method {name} cannot be made: {error}") from None


def _weights(data: Any) -> dict[str, Any]:
    if not isinstance(data, dict) or (data.get("format"), data.get("version")) != (FORMAT, VERSION):
        raise ValueError(f"this is no recipe: it must say format {FORMAT!r} and version {VERSION}")
    weights = _field(data, "weights", dict)
    for name, entry in weights.items():
        layers, shape = _field(entry, "layers", list), _field(entry, "shape", list)
        if not layers or layers[0] != name or not all(isinstance(layer, str) for layer in layers):
            raise ValueError(f"the recipe's weight {name!r} must list its layers, itself first")
        if not shape or not all(type(size) is int and size > 0 for size in shape):
            raise ValueError(f"the recipe's weight {name!r} has a bad shape: {shape!r}")
        sizes = (_field(entry, "forward", int), _field(entry, "backward", int), math.prod(shape))
        if not 1 <= sizes[0] <= sizes[1] <= sizes[2]:
            raise ValueError(f"the recipe's weight {name!r} must have 1 ≤ |A| ≤ |B| ≤ n, got {sizes}")
        _field(entry, "engine", str)
        if entry.get("initial") is not None:
            _initial(name, _field(entry, "initial", dict))
    return weights


def _initial(name: str, entry: dict[str, Any]) -> Initial:
    numbers = [entry.get("scale"), entry.get("mass")]
    if set(entry) != {"kind", "scale", "mass"} or not all(isinstance(n, int | float) for n in numbers):
        raise ValueError(f"the recipe's weight {name!r} has a bad initial distribution: {entry!r}")
    if entry["kind"] not in KINDS:
        raise ValueError(f"the recipe's weight {name!r} has an unknown initial kind {entry['kind']!r}")
    return Initial(**entry)


def _field(data: Any, name: str, kind: type[_T]) -> _T:
    value = data.get(name) if isinstance(data, dict) else None
    if not isinstance(value, kind) or isinstance(value, bool):
        raise ValueError(f"the recipe's {name!r} must be of type {kind.__name__}, got {value!r}")
    return value
