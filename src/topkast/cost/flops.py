"""`Handle.flops()`: what a step of a model costs, counted on an example, by layer and pass.

The model is run once with every product of a layer replaced by one that only counts (`cost.counting`),
so counting costs little whatever the size of the layers. Everything else, such as attention's products, is
left to `torch.utils.flop_counter`.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import UninitializedParameter
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.flop_counter import FlopCounterMode, sdpa_flop_count

from topkast.core.weight import SparseWeight
from topkast.cost.accounting import Flops, LayerFlops, over_run
from topkast.cost.counting import CountingEngine, Tally, counting_forward, is_countable
from topkast.methods.base import Method
from topkast.nn.base import SparseLayer
from topkast.nn.find import find

Example = Tensor | tuple[Any, ...] | Mapping[str, Any]


def flops(model: nn.Module, weights: Mapping[str, SparseWeight], example: Example) -> Flops:
    """What one forward and backward pass costs at the present sets, beside the same model dense.

    The model is left as it is: parameters, gradients, buffers, mode, hooks and random numbers. Sparse and
    dense layers put out zeros meanwhile, so a model must not branch on what they compute.

    Args:
        model: Sparse or not, in the mode (training or evaluation) that is to be counted.
        weights: Its sparse weights by name.
        example: What the model is called with: a tensor, a tuple of positional arguments, or a mapping of
            keyword arguments.

    Raises:
        TypeError: `example` is none of these.
        ValueError: A layer is not initialised yet.
    """
    args, kwargs = _arguments(example)
    _check_initialised(model)
    with ExitStack() as stack:
        model = stack.enter_context(unpacked_attention(model))
        tallies = _count_layers(model, weights, stack)
        stack.enter_context(_spare_buffers(model))
        stack.enter_context(_same_random_numbers(model))
        try:
            others = _run(model, args, kwargs)
        except Exception as error:
            error.add_note("(while counting FLOPs: the model was called with `example`)")
            raise
    return Flops(tuple(_layer(*entry) for entry in tallies), *others)


def run_flops(
    model: nn.Module, weights: Mapping[str, SparseWeight], method: Method, example: Example, steps: int
) -> Flops:
    """What a whole run of a method costs, from step 1 to step number `steps`; see `flops`.

    Raises:
        TypeError: `steps` is not a whole number.
        ValueError: `steps` is less than 1.
    """
    if isinstance(steps, bool) or not isinstance(steps, int):
        raise TypeError(f"`steps` must be a whole number of steps, got {steps!r}")
    if steps < 1:
        raise ValueError(f"`steps` must be at least 1, got {steps!r}; leave it out for one step as it is now")
    step = flops(model, weights, example)
    # What the distribution gave, where a method has sets of other sizes on the way there.
    counts = {name: weight.target for name, weight in weights.items()}
    return over_run(step, method.densities, counts, steps)


def dense_flops(model: nn.Module, example: Example) -> Flops:
    """What one forward and backward pass of a dense model costs, with the layers that `sparsify` would find.

    Attention counts as its four projections. The model and the example may be on the meta device, so that
    a model can be planned for before it exists:

    Example:
        >>> with torch.device("meta"):
        ...     model, example = nn.Sequential(nn.Linear(4096, 4096)), torch.empty(512, 4096)
        >>> dense_flops(model, example).forward == 2 * 512 * 4096 * 4096
        True

    Args:
        model: A model without sparse layers.
        example: See `flops`.

    Raises:
        ValueError: The model has sparse layers.
    """
    sparse = next((name for name, m in model.named_modules() if isinstance(m, SparseLayer)), None)
    if sparse is not None:
        raise ValueError(
            f"`model` must be dense, but {sparse!r} is a sparse layer: use `Handle.flops`, "
            "or `topkast.densify` first"
        )
    return flops(model, {}, example)


def _arguments(example: Example) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Positional and keyword arguments, cut off from whatever graph their tensors belong to."""

    def cut(leaf: Any) -> Any:
        is_tensor = isinstance(leaf, Tensor)
        return leaf.detach().requires_grad_(leaf.requires_grad) if is_tensor else leaf

    if isinstance(example, Tensor):
        return (cut(example),), {}
    if isinstance(example, tuple):
        return tree_map(cut, tuple(example)), {}
    if isinstance(example, Mapping):
        return (), tree_map(cut, dict(example))
    raise TypeError(
        "`example` must be what the model is called with: a tensor, a tuple of positional arguments or a "
        f"mapping of keyword arguments, got {type(example).__name__}; a list as the one argument is `(list,)`"
    )


def _check_initialised(model: nn.Module) -> None:
    for name, parameter in model.named_parameters():
        if isinstance(parameter, UninitializedParameter):
            raise ValueError(f"{name!r} is not initialised yet: run one batch through the model first")


_Entry = tuple[str, tuple[int, ...], Tally, SparseWeight | None]


def _count_layers(model: nn.Module, weights: Mapping[str, SparseWeight], stack: ExitStack) -> list[_Entry]:
    """A tally for every weight, in module order; layers that share a weight share the tally."""
    names = {id(weight): name for name, weight in weights.items()}
    entries: dict[int, _Entry] = {}
    for path, module in model.named_modules():
        if isinstance(module, SparseLayer):
            weight = module.weight
            if id(weight) not in entries:
                tally = stack.enter_context(_counting_engine(weight))
                entries[id(weight)] = (names[id(weight)], tuple(weight.shape), tally, weight)
        elif is_countable(module):
            # A parametrized layer has no weight of its own that others could share.
            key = id(module._parameters.get("weight", module))
            entries.setdefault(key, (path, tuple(module.weight.shape), Tally(), None))  # pyright: ignore
            forward = counting_forward(module, entries[key][2])
            stack.enter_context(_attribute(module, "forward", forward))
    return list(entries.values())


def _layer(name: str, shape: tuple[int, ...], tally: Tally, weight: SparseWeight | None) -> LayerFlops:
    cost = LayerFlops(name, shape, tally.forward, tally.input_grad, tally.weight_grad)
    if weight is None:
        return cost
    counts = weight.counts
    return cost.at(
        counts.forward_density, counts.backward_density if weight.explores else counts.forward_density
    )


@torch.inference_mode(False)
@torch.enable_grad()
def _run(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[int, int]:
    """FLOPs, forward and backward, of everything that was not replaced."""
    wanted = [p for p in (*model.parameters(), *tree_leaves((args, kwargs))) if _is_differentiable(p)]
    counter = FlopCounterMode(display=False, custom_mapping=_ATTENTION)
    counter.mod_tracker = _NoTracker()  # pyright: ignore[reportAttributeAccessIssue]
    with counter:
        outputs = [y for y in tree_leaves(model(*args, **kwargs)) if _is_differentiable(y)]
        forward = counter.get_total_flops()
        if outputs and wanted:
            grads = [torch.zeros_like(y) for y in outputs]
            torch.autograd.grad(outputs, wanted, grads, allow_unused=True)
    return forward, counter.get_total_flops() - forward


class _NoTracker(nullcontext[None]):
    """In place of torch's, whose hooks fail when a layer is called with a Parameter under `autograd.grad`."""

    parents = frozenset({"Global"})


def _is_differentiable(leaf: Any) -> bool:
    return isinstance(leaf, Tensor) and leaf.requires_grad


def _attention(q: Any, k: Any, v: Any, *args: Any, **kwargs: Any) -> int:
    return sdpa_flop_count(q, k, v)


def _attention_backward(grad: Any, q: Any, k: Any, v: Any, *args: Any, **kwargs: Any) -> int:
    """Two gradients for each of the two products.

    Fused kernels compute the scores a second time, which torch counts as a fifth product. It is left out, so
    that attention costs the same on every device and with every kernel.
    """
    return 2 * sdpa_flop_count(q, k, v)


_aten = torch.ops.aten
# The CPU's fused kernel is not known to torch's counter at all.
_ATTENTION = {
    _aten._scaled_dot_product_flash_attention_for_cpu: _attention,
    _aten._scaled_dot_product_flash_attention_for_cpu_backward: _attention_backward,
    _aten._scaled_dot_product_flash_attention_backward: _attention_backward,
    _aten._scaled_dot_product_efficient_attention_backward: _attention_backward,
    _aten._scaled_dot_product_cudnn_attention_backward: _attention_backward,
}


# ---- other parts in a model for a moment ---------------------------------------------------------------


@contextmanager
def _counting_engine(weight: SparseWeight) -> Generator[Tally]:
    """Counts the products of a sparse weight in place of computing them."""
    engine, had_plan = CountingEngine(), weight._plan is not None
    with ExitStack() as stack:
        stack.enter_context(_attribute(weight, "engine_impl", lambda: engine))
        if "wants_gradient" in weight.__dict__:  # no gradient of ours is for a method to grow by
            stack.enter_context(_entry(weight.__dict__, "wants_gradient", None))
        yield engine.tally
    if not had_plan:
        weight.forget_plan()


@contextmanager
def unpacked_attention(model: nn.Module) -> Generator[nn.Module]:
    """The model with dense `nn.MultiheadAttention` as four layers each, under the names `sparsify` uses."""
    attentions = find(model).attentions
    with ExitStack() as stack:
        originals = {id(model.get_submodule(path)): unpacked for path, unpacked in attentions.items()}
        for parent in list(model.modules()):
            for name, child in list(parent._modules.items()):
                if id(child) in originals:
                    stack.enter_context(_entry(parent._modules, name, originals[id(child)]))
        yield attentions.get("", model)


@contextmanager
def _spare_buffers(model: nn.Module) -> Generator[None]:
    """Lets the model write to copies of its buffers, such as BatchNorm's statistics.

    A sparse weight's own are left out: no forward pass writes to them, and they are large.
    """
    ours = {id(m) for w in model.modules() if isinstance(w, SparseWeight) for m in w.modules()}
    copies: dict[int, Tensor] = {}
    with ExitStack() as stack:
        for module in model.modules():
            if id(module) in ours:
                continue
            for name, buffer in list(module._buffers.items()):
                if buffer is not None:
                    copy = copies.setdefault(id(buffer), buffer.detach().clone())
                    stack.enter_context(_entry(module._buffers, name, copy))
        yield


@contextmanager
def _same_random_numbers(model: nn.Module) -> Generator[None]:
    """Leaves torch's generators, of the CPU and of the model's devices, as they are."""
    devices = {p.device for p in model.parameters() if p.device.type not in ("cpu", "meta")}
    with ExitStack() as stack:
        stack.enter_context(torch.random.fork_rng(devices=[]))
        for device in devices:
            stack.enter_context(torch.random.fork_rng(devices=[device], device_type=device.type))
        yield


@contextmanager
def _attribute(owner: nn.Module, name: str, value: Any) -> Generator[None]:
    """Shadows a method of one object."""
    owner.__dict__[name] = value
    try:
        yield
    finally:
        del owner.__dict__[name]


@contextmanager
def _entry(table: dict[str, Any], name: str, value: Any) -> Generator[None]:
    """Another module or buffer in the place of one."""
    original = table[name]
    table[name] = value
    try:
        yield
    finally:
        table[name] = original
