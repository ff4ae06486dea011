"""`densify`: a plain torch copy of a sparse model, zeros outside A."""

from __future__ import annotations

import copy
from typing import Any

from torch import nn

from topkast.convert.huggingface import uninform
from topkast.core.loading import check_states
from topkast.core.local import forget_local
from topkast.core.weight import SparseWeight
from topkast.nn.attention import MultiheadAttention
from topkast.nn.base import SparseLayer
from topkast.nn.belongings import HOOKS, attributes, tags, take_over


def densify(model: nn.Module) -> nn.Module:
    """A copy of the model made of plain torch layers, with α as their weights, for deployment.

    The sparse model is left as it is and can go on training. Tied weights stay tied. Outputs are the same
    up to rounding.

    Raises:
        ValueError: There is no sparse layer in the model.
    """
    sparse = [module for module in model.modules() if isinstance(module, SparseLayer)]
    if not sparse:
        raise ValueError("the model has no sparse layer: `topkast.sparsify` was not applied to it")
    weights: dict[SparseWeight, nn.Parameter] = {}
    # deepcopy takes what stands in the memo for an object's copy: reservoirs are never copied.
    memo: dict[int, Any] = {}
    for layer in sparse:
        if layer.weight not in weights:
            requires_grad = layer.weight.values.requires_grad
            weights[layer.weight] = nn.Parameter(layer.alpha(), requires_grad=requires_grad)
            vars(weights[layer.weight]).update(tags(layer.weight.values))
        twin = layer.to_dense(weights[layer.weight]).train(layer.training)
        memo[id(layer)] = twin
        if layer.bias is not None:  # a bias that stands in another place too (BERT's) stays one
            twin.register_parameter("bias", memo.setdefault(id(layer.bias), twin.bias))
    for layer in sparse:  # once all twins are known, which hooks and attributes may refer to
        _give_back(memo[id(layer)], layer, memo)
    dense = copy.deepcopy(model, memo)
    for parent in list(dense.modules()):
        for name, child in list(parent._modules.items()):
            if isinstance(child, MultiheadAttention):
                setattr(parent, name, child.to_packed())
    _drop_load_hooks(dense)
    uninform(dense)
    forget_local(dense)
    return dense.to_packed() if isinstance(dense, MultiheadAttention) else dense


def _give_back(twin: nn.Module, layer: SparseLayer, memo: dict[int, Any]) -> None:
    """The hooks on a layer, and what was put on it, as a copy of the layer would have them."""
    extra = attributes(layer, {*vars(twin), *layer.private})
    take_over(twin, layer, copy.deepcopy(extra, memo))
    for name in HOOKS:
        if name in vars(twin):
            setattr(twin, name, copy.deepcopy(getattr(twin, name), memo))


def _drop_load_hooks(model: nn.Module) -> None:
    for module in model.modules():  # the model that was made sparse may be a part of this one
        hooks = module._load_state_dict_pre_hooks
        for key in [k for k, h in hooks.items() if getattr(h, "hook", h) is check_states]:
            del hooks[key]
