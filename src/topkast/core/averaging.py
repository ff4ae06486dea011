"""Gradients of values whose length changes, averaged over ranks.

DistributedDataParallel fixes the length of every Parameter when it wraps a model, and the hook by which it
sees a gradient is lost when the Parameter is resized. `keep_local` has it leave such values alone. Here their
gradients are averaged when a backward pass ends, so that clipping and scalers see the mean.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from topkast.core.ranks import Group, together
from topkast.core.weight import SparseWeight

# Models that were called by a DistributedDataParallel, and whether gradients of that pass are to be averaged:
# not within `no_sync()`.
_synced: weakref.WeakKeyDictionary[nn.Module, bool] = weakref.WeakKeyDictionary()
_checked: weakref.WeakSet[nn.Module] = weakref.WeakSet()


class Averaging:
    """Averages the gradients of some weights over ranks at the end of each backward pass.

    What is averaged is all that has accumulated. What is a mean already stays as it is, so that backward
    passes may be several: of a loss and of a penalty.

    Args:
        model: Holds the weights; is called within DistributedDataParallel.
        weights: Name → weight.
        group: The ranks.
    """

    def __init__(self, model: nn.Module, weights: Mapping[str, SparseWeight], group: Group) -> None:
        self._model, self._weights, self._group = model, weights, group
        self._last_task = -1
        method = weakref.WeakMethod(self._on_gradient)

        def hook(_: Tensor) -> None:
            living = method()
            if living is not None:
                living()

        # On all parameters: a rank may use none of the sparse layers in a step, and the others wait for it.
        trained = [p for p in model.parameters() if p.requires_grad]
        self._hooks: list[Any] = [p.register_post_accumulate_grad_hook(hook) for p in trained]
        self._hooks.append(model.register_forward_pre_hook(_note_pass))

    def remove(self) -> None:
        """Leaves the model as it was."""
        for hook in self._hooks:
            hook.remove()

    def _on_gradient(self) -> None:
        """At the first gradient of a backward pass: asks for the rest to be done at its end."""
        task = torch._C._current_graph_task_id()
        if task == self._last_task or not _synced.get(self._model, False):
            return
        self._last_task = task
        torch.autograd.Variable._execution_engine.queue_callback(self._average)

    @torch.no_grad()
    def _average(self) -> None:
        """The mean over ranks. A layer that took no part on one rank may have done so on another."""
        ranks = together(self._group)
        if ranks is None:
            return
        values = [weight.values for weight in self._weights.values()]
        used = [int(v.grad is not None) for v in values]
        for parameter, is_used in zip(values, ranks.largest(used, values[0].device), strict=True):
            if is_used:
                if parameter.grad is None:
                    parameter.grad = torch.zeros_like(parameter)
                ranks.mean_(parameter.grad)


def _note_pass(model: nn.Module, _: Any) -> None:
    """A forward pre-hook. A plain function: copies and files of a model take it along."""
    wrapper = DistributedDataParallel._get_active_ddp_module()
    is_recomputing = torch._C._current_graph_task_id() != -1
    if wrapper is None or is_recomputing or not torch.is_grad_enabled():
        return
    _check_left_alone(model, wrapper)
    _synced[model] = wrapper.require_backward_grad_sync


def _check_left_alone(model: nn.Module, wrapper: Any) -> None:
    """Raises RuntimeError if the wrapper has taken values that will be resized."""
    if wrapper in _checked:
        return
    taken = {id(parameter) for parameter in wrapper._module_parameters}
    for name, part in model.named_modules():
        if isinstance(part, SparseWeight) and part.is_resizable and id(part.values) in taken:
            raise RuntimeError(
                f"DistributedDataParallel has taken {name!r}, whose length will change, since it wraps a "
                "module around the sparse model: call `topkast.distributed.keep_local(module)` on that one "
                "before it is wrapped"
            )
    _checked.add(wrapper)
