"""What DistributedDataParallel must leave alone, and how ranks are given one start."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from topkast.core.ranks import Group, Ranks, together
from topkast.core.weight import SparseWeight

# Where torch keeps the names.
_LIST = "_ddp_params_and_buffers_to_ignore"


def keep_local(module: nn.Module) -> nn.Module:
    """Keeps the sets and reservoirs of sparse layers out of DistributedDataParallel's broadcasts.

    By default it sends every buffer from the first rank to all others before each forward pass. Sets and
    reservoirs are equal already, and large. `topkast.sparsify` and `topkast.Handle` do this for the model
    they are given; call it where a larger module is wrapped, before it is wrapped.

    Values whose length changes are left alone too: their gradients are averaged by `core.averaging`.

    Args:
        module: What will be wrapped, with sparse layers somewhere in it.

    Returns:
        The same module.
    """
    ours = [
        f"{path}.{name}" if path else name
        for path, part in module.named_modules(remove_duplicate=False)
        if isinstance(part, SparseWeight)
        for name in _local_names(part)
    ]
    others = getattr(module, _LIST, ())
    # Private to torch, but the one way there is; without it the run is right, and sends more.
    DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(
        module, list(dict.fromkeys([*others, *ours]))
    )
    return module


def _local_names(weight: SparseWeight) -> list[str]:
    buffers = [name for name, _ in weight.named_buffers()]
    return [*buffers, "values"] if weight.is_resizable else buffers


def forget_local(module: nn.Module) -> None:
    """The opposite, for a module that has no sparse layers any more, and for all within it."""
    for part in module.modules():
        vars(part).pop(_LIST, None)


@torch.no_grad()
def broadcast(model: nn.Module, process_group: Group = None) -> None:
    """Gives all ranks the state that the first one has: parameters, sets, reservoirs, every buffer.

    For ranks that were not started alike, such as when only the first has loaded a checkpoint. Call it on
    every rank before training; optimizer states are not part of it.

    Args:
        model: The sparse model, the same on all ranks but for its numbers.
        process_group: Its ranks; all by default. Nothing happens where there is only one.

    Raises:
        ValueError: The models are not the same.
    """
    ranks = together(process_group)
    if ranks is None:
        return
    state = model.state_dict()
    shapes = ranks.from_first({name: (t.shape, t.dtype) for name, t in state.items()})
    _check_names(ranks, list(shapes) == list(state))
    for name, (shape, dtype) in shapes.items():
        mine = state[name]
        # Into a copy: what is loaded is checked as a whole first. Reservoirs may have other lengths.
        state[name] = ranks.tensor_from_first(
            mine.detach().clone() if ranks.is_first else torch.empty(shape, dtype=dtype, device=mine.device)
        )
    model.load_state_dict(state)


def _check_names(ranks: Ranks, is_same: bool) -> None:
    if any(ranks.largest([int(not is_same)])):
        raise ValueError("the models of the ranks differ in what they are made of: build the same on each")


def refuse_join(model: nn.Module) -> Any:
    """Lets the model's forward pass raise within DistributedDataParallel's `join()`.

    There, a rank that runs out of data answers the others' gradients only: it would neither step nor refresh,
    and they would wait for it at their next refresh. Returns the hook.
    """
    return model.register_forward_pre_hook(_check_join)


def _check_join(*_: Any) -> None:
    wrapper = DistributedDataParallel._get_active_ddp_module()
    config = getattr(wrapper, "_join_config", None)
    if config is not None and config.enable and not config.throw_on_early_termination:
        raise RuntimeError(
            "a sparse model cannot be trained within DistributedDataParallel's join(): a rank that has run "
            "out of data takes no steps, and the others would wait for it at the next refresh. Give all "
            "ranks the same number of batches (DistributedSampler, drop_last), or stop all of them "
            "together with join(throw_on_early_termination=True)"
        )


def why_sharded(weight: SparseWeight) -> str | None:
    """Says how `values` was split between ranks, or None if this process has all of it."""
    values: Any = weight.values
    if hasattr(values, "placements"):  # a DTensor, as FSDP2's fully_shard and tensor parallelism make
        return f"is a DTensor ({', '.join(map(str, values.placements))})"
    if not isinstance(values, nn.Parameter):
        return "is no longer a Parameter of its own (FSDP has put it into a flat one)"
    if values.numel() != weight.indices.numel():
        return f"has {values.numel()} of {weight.indices.numel()} numbers (FSDP has split it)"
    return None
