"""Letting a model run for a moment with other parts in it, and putting everything back."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from topkast.convert.find import find
from topkast.core.weight import SparseWeight
from topkast.kernels.counting import CountingEngine, Tally, conv_flops, linear_flops, product
from topkast.kernels.engine import ConvGeometry, output_space
from topkast.nn.base import SparseLayer
from topkast.nn.registry import counterpart


@contextmanager
def counting_engine(weight: SparseWeight) -> Generator[Tally]:
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
def counting_layer(layer: nn.Module, tally: Tally) -> Generator[None]:
    """Counts the product of a layer that is dense; see `is_countable`."""
    sparse_type = counterpart(layer)
    assert sparse_type is not None
    forward = _FORWARD[sparse_type.kind]
    # Hugging Face's Conv1D has its weight the other way round.
    is_transposed = not isinstance(layer, tuple(_TORCH))
    with _attribute(layer, "forward", lambda input: forward(layer, tally, input, is_transposed)):
        yield


def is_countable(layer: nn.Module) -> bool:
    """Whether this is a dense layer whose product is known: one with a sparse counterpart, not wrapped."""
    if isinstance(layer, SparseLayer) or "forward" in layer.__dict__:
        return False
    return counterpart(layer) is not None


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
def spare_buffers(model: nn.Module) -> Generator[None]:
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
def same_random_numbers(model: nn.Module) -> Generator[None]:
    """Leaves torch's generators, of the CPU and of the model's devices, as they are."""
    devices = {p.device for p in model.parameters() if p.device.type not in ("cpu", "meta")}
    with ExitStack() as stack:
        stack.enter_context(torch.random.fork_rng(devices=[]))
        for device in devices:
            stack.enter_context(torch.random.fork_rng(devices=[device], device_type=device.type))
        yield


# ---- how dense layers are counted ---------------------------------------------------------------------


def _linear(layer: Any, tally: Tally, x: Tensor, is_transposed: bool) -> Tensor:
    rows, columns = layer.weight.shape
    outputs, inputs = (columns, rows) if is_transposed else (rows, columns)
    if x.ndim == 0 or x.shape[-1] != inputs:
        raise ValueError(f"the input's last dimension must be {inputs}, got input of shape {tuple(x.shape)}")
    flops = linear_flops(x[..., 0].numel(), layer.weight.numel())
    return product(tally, x, layer.weight, layer.bias, (*x.shape[:-1], outputs), flops)


def _conv(layer: Any, tally: Tally, x: Tensor, is_transposed: bool) -> Tensor:
    dims = len(layer.stride)
    if x.ndim not in (dims + 1, dims + 2) or x.shape[-dims - 1] != layer.in_channels:
        raise ValueError(
            f"the input must be ([batch,] {layer.in_channels} channels, {dims} spatial dimensions), "
            f"got input of shape {tuple(x.shape)}"
        )
    space = tuple(x.shape[-dims:])
    if layer.padding != "same":
        padding = (0,) * dims if layer.padding == "valid" else layer.padding
        geometry = ConvGeometry(layer.stride, padding, layer.dilation, layer.groups)
        space = output_space(space, layer.kernel_size, geometry)
    batch = x.shape[0] if x.ndim == dims + 2 else 1
    shape = (batch, layer.out_channels, *space)
    flops = conv_flops(shape, layer.weight.numel())
    return product(tally, x, layer.weight, layer.bias, shape if x.ndim == dims + 2 else shape[1:], flops)


def _lookup(layer: Any, tally: Tally, ids: Tensor, is_transposed: bool) -> Tensor:
    return product(tally, ids, layer.weight, None, (*ids.shape, layer.weight.shape[1]), 0)


_TORCH: tuple[type[nn.Module], ...] = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.Embedding)
_FORWARD: Mapping[str, Callable[[Any, Tally, Tensor, bool], Tensor]] = {
    "linear": _linear,
    "conv": _conv,
    "embedding": _lookup,
}


# ---- putting back -------------------------------------------------------------------------------------


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
