"""What a model of Hugging Face's transformers is told when its layers become sparse.

Such a model says by name which weights are tied, and can resize or replace its embeddings. It is known by
these names, so that transformers need not be installed. `densify` takes back what is said here.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from typing import Any

from torch import nn

from topkast.nn.base import SparseLayer

_TIES = ("_tied_weights_keys", "all_tied_weights_keys")
_WEIGHT, _VALUES = ".weight", ".weight.values"
_WAY_OUT = "before sparsify, or `topkast.densify` the model, do it there and sparsify again"


def inform(model: nn.Module) -> None:
    """Lets `tie_weights` find tied sparse weights in place, and guards the embeddings.

    transformers ties ``target = source``, where the source must be a Parameter: from now on it is the
    `values` of the sparse weight. A sparse layer that holds them already takes that for no change. And
    whatever is in the model has its values: `init_weights` must not draw them again.
    """
    for module in _pretrained(model):
        for part in module.modules():
            part._is_hf_initialized = True
        for name in _TIES:
            ties = getattr(module, name, None)
            if isinstance(ties, dict):
                setattr(module, name, {t: _sparse_source(module, t, s) for t, s in ties.items()})
        for name in _CHECKS:
            if callable(getattr(type(module), name, None)):
                setattr(module, name, _Guard(module, name))


def uninform(dense: nn.Module) -> None:
    """Takes all of this from a model that has no sparse layers any more."""
    for module in _pretrained(dense):
        for name in _TIES:
            ties = vars(module).get(name)
            if isinstance(ties, dict):
                plain = {
                    t: s.removesuffix(_VALUES) + _WEIGHT if s.endswith(_VALUES) else s
                    for t, s in ties.items()
                }
                setattr(module, name, plain)
                if getattr(type(module), name, None) == plain:
                    delattr(module, name)
        for name in _CHECKS:
            if isinstance(vars(module).get(name), _Guard):
                delattr(module, name)


def _pretrained(model: nn.Module) -> Iterator[Any]:
    return (
        m for m in model.modules() if hasattr(type(m), "_tied_weights_keys") and hasattr(m, "tie_weights")
    )


def _sparse_source(module: nn.Module, target: str, source: str) -> str:
    ends = [_layer_at(module, name) for name in (target, source)]
    return source if None in ends else source.removesuffix(_WEIGHT) + _VALUES


def _layer_at(module: nn.Module, name: str) -> SparseLayer | None:
    """The sparse layer whose weight goes by this name, if it is one and no pattern."""
    path = name.removesuffix(_WEIGHT)
    layer = dict(module.named_modules(remove_duplicate=False)).get(path) if path != name else None
    return layer if isinstance(layer, SparseLayer) else None


class _Guard:
    """A method of a model that first looks whether it may: sparse layers keep their place and size."""

    def __init__(self, model: nn.Module, name: str) -> None:
        self.__setstate__((model, name))

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        model = self._model()
        assert model is not None
        _CHECKS[self._name](model, *args, **kwargs)
        return getattr(type(model), self._name)(model, *args, **kwargs)

    # The model holds its guards: held weakly by these, it is gone as soon as nobody else has it.
    def __getstate__(self) -> tuple[nn.Module | None, str]:
        return self._model(), self._name

    def __setstate__(self, state: tuple[nn.Module, str]) -> None:
        self._model, self._name = weakref.ref(state[0]), state[1]


def _embedding(model: Any, which: str) -> SparseLayer | None:
    try:
        found = getattr(model, f"get_{which}_embeddings")()
    except (AttributeError, NotImplementedError):  # transformers has models without
        return None
    return found if isinstance(found, SparseLayer) else None


def _check_resize(
    model: Any, new_num_tokens: int | None = None, pad_to_multiple_of: int | None = None, *_: Any, **__: Any
) -> None:
    for layer in (_embedding(model, "input"), _embedding(model, "output")):
        if layer is None or (new_num_tokens is None and pad_to_multiple_of is None):
            continue
        rows = layer.weight.shape[0]
        wanted = rows if new_num_tokens is None else new_num_tokens
        if pad_to_multiple_of is not None:
            wanted = -(-wanted // pad_to_multiple_of) * pad_to_multiple_of
        if wanted != rows:
            raise RuntimeError(
                f"layer {layer.weight.name!r} is sparse and keeps its {rows} rows, got a size of {wanted}; "
                f"resize the embeddings {_WAY_OUT}"
            )


def _check_set(which: str) -> Callable[..., None]:
    def check(model: Any, new: nn.Module, *_: Any, **__: Any) -> None:
        layer = _embedding(model, which)
        if layer is not None and all(part is not layer for part in new.modules()):
            raise RuntimeError(
                f"layer {layer.weight.name!r} is sparse and keeps its place, got {type(new).__name__} for "
                f"it; set the {which} embeddings {_WAY_OUT}"
            )

    return check


_CHECKS: dict[str, Callable[..., None]] = {
    "resize_token_embeddings": _check_resize,
    "set_input_embeddings": _check_set("input"),
    "set_output_embeddings": _check_set("output"),
}
