"""What a user or a framework has put on a layer: attributes to carry along, and what keeps a layer dense.

A layer is swapped for its sparse counterpart, and back by `densify`. Whatever cannot move with it must not be
lost in silence: the layer then stays dense, with the reason.
"""

from __future__ import annotations

from collections.abc import Collection
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

# What is registered to run at a layer's calls. Hooks on its state are another matter: the state differs.
HOOKS = (
    "_forward_hooks",
    "_forward_hooks_with_kwargs",
    "_forward_hooks_always_called",
    "_forward_pre_hooks",
    "_forward_pre_hooks_with_kwargs",
    "_backward_hooks",
    "_backward_pre_hooks",
    "_is_full_backward_hook",
)
_STATE_HOOKS = (
    "_state_dict_hooks",
    "_state_dict_pre_hooks",
    "_load_state_dict_pre_hooks",
    "_load_state_dict_post_hooks",
)
_MODULE = frozenset(vars(nn.Module()))


def attributes(layer: nn.Module, known: Collection[str]) -> dict[str, Any]:
    """What was put on a layer, by name, apart from the names that its class is known to have."""
    return {name: value for name, value in vars(layer).items() if name not in _MODULE and name not in known}


def tags(parameter: Tensor) -> dict[str, Any]:
    """What was put on a Parameter. Subclasses of Tensor keep what they are made of in the same place."""
    return dict(vars(parameter)) if type(parameter) is nn.Parameter else {}


@cache
def constructed(cls: type[nn.Module], *sizes: int) -> frozenset[str]:
    """The names that a class's constructor gives its objects."""
    with torch.device("meta"):
        return frozenset(vars(cls(*sizes)))


def take_over(new: nn.Module, old: nn.Module, extra: dict[str, Any]) -> None:
    """Gives a layer the hooks of the one whose place it takes, and these attributes."""
    for name in HOOKS:
        if name in vars(old):
            setattr(new, name, getattr(old, name))
    vars(new).update(extra)


def why_dense(
    layer: nn.Module, parts: Collection[str], extra: Collection[str], taken: type[nn.Module]
) -> str | None:
    """What stands in the way of swapping this layer, or None.

    Args:
        layer: Dense.
        parts: Its parameters and submodules that its counterpart has, or makes something of.
        extra: Attributes that are to be carried along.
        taken: The class that would take its place.
    """
    for name in vars(layer):
        if callable(getattr(type(layer), name, None)):
            return f"has a {name} of its own"
    if vars(layer).get("_compiled_call_impl") is not None:
        return "is compiled by itself; compile it after sparsify"
    if any(getattr(layer, name) for name in _STATE_HOOKS):
        return "has hooks on its state_dict; register them after sparsify"
    own = [*layer._parameters, *layer._buffers, *layer._modules]
    if more := [name for name in own if name not in parts]:
        return f"has parts that its sparse counterpart has not: {', '.join(more)}"
    if clash := [name for name in extra if hasattr(taken, name)]:
        return f"has an attribute {clash[0]!r}, a name that sparse layers use themselves"
    return None


def why_dense_weight(weight: nn.Parameter) -> str | None:
    """What hangs on a weight that only a dense one can have, or None."""
    if weight._backward_hooks or weight._post_accumulate_grad_hooks:
        return (
            "its weight has a gradient hook, which expects a dense gradient; "
            "register it on `layer.weight.values` after sparsify"
        )
    if tensors := [name for name, value in tags(weight).items() if isinstance(value, Tensor)]:
        return f"its weight has a tensor as an attribute: {tensors[0]}"
    return None
