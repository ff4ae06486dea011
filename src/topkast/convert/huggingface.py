"""What a model of Hugging Face's transformers is told when its layers become sparse.

Such a model says by name which weights are tied, and can resize or replace its embeddings. It is known by
these names, so that transformers need not be installed. `densify` takes back what is said here.
"""

from __future__ import annotations

import re
import weakref
from collections.abc import Callable, Iterator
from typing import Any

from torch import nn

from topkast.nn.base import SparseLayer

_CHANGED = ("_tied_weights_keys", "all_tied_weights_keys", "_weight_conversions")
_BEFORE = "_before_sparsify"
_WAY_OUT = "before sparsify, or `topkast.densify` the model, do it there and sparsify again"


def inform(model: nn.Module) -> None:
    """Lets a model tie, initialise and save its sparse weights rightly, and guards its embeddings.

    - Names of tied weights lead to tensors of the sparse weight, which are tied already.
    - Whatever is in the model has its values: `init_weights` must not draw them again.
    - States are saved under the model's own names: conversions to names and layouts of other versions are
      for dense tensors.
    """
    for module in _pretrained(model):
        vars(module)[_BEFORE] = {name: vars(module)[name] for name in _CHANGED if name in vars(module)}
        layers = dict(module.named_modules(remove_duplicate=False))
        patterns = _rename(module._tied_weights_keys, layers, _pattern)
        if patterns != module._tied_weights_keys:
            module._tied_weights_keys = patterns
        module.all_tied_weights_keys = _rename(vars(module).get("all_tied_weights_keys"), layers, _values)
        module._weight_conversions = []
        for part in layers.values():
            part._is_hf_initialized = True
        for name in _CHECKS:
            if callable(getattr(type(module), name, None)):
                setattr(module, name, _Guard(module, name))


def uninform(dense: nn.Module) -> None:
    """Takes all of this from a model that has no sparse layers any more."""
    for module in _pretrained(dense):
        before = vars(module).pop(_BEFORE, None)
        for name in _CHANGED if before is not None else ():
            vars(module).pop(name, None)
        vars(module).update(before or {})
        for name in _CHECKS:
            if isinstance(vars(module).get(name), _Guard):
                delattr(module, name)


def _pretrained(model: nn.Module) -> Iterator[Any]:
    known = ("_tied_weights_keys", "tie_weights", "get_expanded_tied_weights_keys")
    return (m for m in model.modules() if all(hasattr(type(m), name) for name in known))


def _rename(
    ties: dict[str, str] | None, layers: dict[str, nn.Module], rename: Callable[[str, bool], str]
) -> Any:
    """Pairs (target, source) of names, with new ones where both are weights of sparse layers."""
    renamed = {}
    for target, source in (ties or {}).items():
        ends = [layers.get(name.removesuffix(".weight")) for name in (target, source)]
        if all(isinstance(layer, SparseLayer) for layer in ends):
            is_one = ends[0].weight is ends[1].weight  # pyright: ignore[reportOptionalMemberAccess]
            target, source = rename(target, is_one), rename(source, is_one)
        renamed[target] = source
    return renamed if ties is not None else None


def _pattern(name: str, is_one: bool) -> str:
    """As transformers expands to tensors: all of a tied weight, of others the one that refuses to be tied."""
    return re.escape(name) + (r"\." if is_one else r"\.values$")


def _values(name: str, _is_one: bool) -> str:
    return f"{name}.values"


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
