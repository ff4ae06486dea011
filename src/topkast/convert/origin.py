"""Where a model's weights come from: its own, or drawn, for a model that was built on the meta device.

`AsGiven` and `AsDrawn` answer what `sparsify` asks of either: is the model fit for it, how does each weight
start, and what becomes of the rest.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from topkast.core.build import Drawn, Kept, Start
from topkast.core.distribution import matches, nearest
from topkast.core.initial import How, Initial, Normal, Uniform, initial, parts_of
from topkast.core.select import derive_key
from topkast.nn.attention import MultiheadAttention, packed_bound
from topkast.nn.base import SparseLayer, own_initial, start_bias
from topkast.nn.find import Candidate, WeightGroup
from topkast.nn.layers import Conv1D

Init = How | Mapping[str, How]
Initialise = Callable[[nn.Module], Any]
_T = TypeVar("_T")


class Origin(ABC):
    """What `sparsify` asks.

    Args:
        init: See there.
    """

    def __init__(self, init: Init | None) -> None:
        self._init = init

    @abstractmethod
    def check(self, model: nn.Module, groups: list[WeightGroup]) -> None:
        """Raises ValueError if these weights of the model cannot start so. Nothing is changed."""

    @abstractmethod
    def start(self, group: WeightGroup, key: int) -> Start:
        """How one of them starts; `key` is its own."""

    def scaling(self, group: WeightGroup) -> str | None:
        """By what its start is multiplied; see `initial.Scaled`."""
        return parts_of(_wanted(self._init, group.names))[1]

    def _drawn(self, group: WeightGroup) -> str | Initial | None:
        """What `init` says that it is drawn from; None is its own start."""
        return parts_of(_wanted(self._init, group.names))[0]

    def finish(self, model: nn.Module, seed: int) -> None:  # noqa: B027  (nothing is a fine default)
        """Called when the sparse layers are in their places."""


class AsGiven(Origin):
    """The model's own weights, or others in their place, drawn from the stream of an implicit reservoir."""

    def check(self, model: nn.Module, groups: list[WeightGroup]) -> None:
        check_init(self._init, groups)
        for group in groups:
            _check_weight(group.name, group.parameter)

    def start(self, group: WeightGroup, key: int) -> Start:
        wanted, parameter = self._drawn(group), group.parameter
        if wanted is None:
            return Kept(parameter)
        distribution = initial_of(group, wanted)
        shape = tuple(parameter.shape)
        drawn = Drawn(shape, distribution, parameter.dtype, parameter.device, is_stored=True)
        padding = [row for row, _ in _padding(group)]
        if not padding:
            return drawn
        theta = _named(group.name, lambda: drawn.dense(key))
        theta[padding] = 0
        return Kept(theta)


class AsDrawn(Origin):
    """Weights that are drawn without ever being there; see `sparsify` for the arguments."""

    def __init__(self, init: Init | None, initialise: Initialise | None, device: torch.device | str) -> None:
        super().__init__(init)
        self._initialise, self._device = initialise, torch.device(device)

    def check(self, model: nn.Module, groups: list[WeightGroup]) -> None:
        check_init(self._init, groups)
        replaced = {id(m.layer) for group in groups for m in group.members}
        check_rest(model, replaced, self._initialise)
        for group in groups:
            _check_empty(group.name, group.parameter)

    def start(self, group: WeightGroup, key: int) -> Start:
        parameter = group.parameter
        for _, name in _padding(group):
            raise ValueError(
                f"layer {name!r} has a padding row, which starts at zero: no implicit reservoir knows "
                'it; leave the layer dense with skip, or use reservoir="stored"'
            )
        distribution = initial_of(group, self._drawn(group))
        return Drawn(tuple(parameter.shape), distribution, parameter.dtype, self._device)

    def finish(self, model: nn.Module, seed: int) -> None:
        bring_to_life(model, self._device, seed, self._initialise)


def _padding(group: WeightGroup) -> list[tuple[int, str]]:
    """Rows that embeddings keep at zero, and the names of these."""
    rows = [(getattr(member.layer, "padding_idx", None), member.name) for member in group.members]
    return [(row, name) for row, name in rows if row is not None]


def _check_weight(name: str, parameter: Tensor) -> None:
    if parameter.is_meta:
        raise ValueError(
            f"layer {name!r} is on the meta device and has no values; "
            'use reservoir="implicit", or initialise the model on a real device first '
            "(`model.to_empty(device=…)`, then its own init)"
        )
    if not parameter.is_floating_point():
        raise ValueError(f"layer {name!r} must have floating-point weights, got {parameter.dtype}")
    if parameter.numel() == 0:
        raise ValueError(f"layer {name!r} has an empty weight of shape {tuple(parameter.shape)}")
    if not torch.isfinite(parameter).all():
        bad = int((~torch.isfinite(parameter)).sum())
        raise ValueError(
            f"layer {name!r} has {bad} weights that are not finite, which have no rank by magnitude; "
            "initialise it before sparsify"
        )


def _check_empty(name: str, parameter: Tensor) -> None:
    if not parameter.is_meta:
        raise ValueError(
            f"layer {name!r} has values, which an implicit reservoir cannot hold: it only knows weights that "
            'were drawn at random. Use reservoir="stored" to keep them, or build the model without them: '
            '`with torch.device("meta"): model = …`'
        )
    if parameter.numel() == 0:
        raise ValueError(f"layer {name!r} has an empty weight of shape {tuple(parameter.shape)}")


# ---- the initial distribution of each layer -----------------------------------------------------------


def initial_of(group: WeightGroup, wanted: str | Initial | None) -> Initial:
    """The distribution of a weight's θ⁰: what is wanted, else the layer's own.

    Raises:
        ValueError: A distribution without a known quantile function.
    """
    shape = tuple(group.parameter.shape)
    return _named(
        group.name, lambda: _own(group.members[0], shape) if wanted is None else initial(wanted, shape)
    )


def _named(layer: str, make: Callable[[], _T]) -> _T:
    """What `make` gives; an error names the layer."""
    try:
        return make()
    except ValueError as error:
        raise ValueError(f"layer {layer!r}: {error}") from None


def check_init(init: Init | None, groups: list[WeightGroup]) -> None:
    """Raises if a pattern of `init` matches no sparse layer."""
    names = [name for group in groups for name in group.names]
    for pattern in init if isinstance(init, Mapping) else ():
        if not any(matches(pattern, name) for name in names):
            raise ValueError(
                f"`init` names {pattern!r}, which matches no sparse layer; "
                f"there are {nearest(pattern, names)}"
            )


def _wanted(init: Init | None, names: list[str]) -> How | None:
    if not isinstance(init, Mapping):
        return init
    hits = [which for pattern, which in init.items() if any(matches(pattern, name) for name in names)]
    return hits[-1] if hits else None


def _own(member: Candidate, shape: tuple[int, ...]) -> Initial:
    """What the layer's own `reset_parameters` draws its weight from."""
    layer = member.layer
    if member.attention is not None and not member.name.endswith("out_proj"):
        return Uniform(packed_bound(member.attention, shape))
    if member.sparse_type is Conv1D:
        return Normal(0.02)
    return own_initial(layer, shape)


# ---- the dense rest -----------------------------------------------------------------------------------


def check_rest(model: nn.Module, replaced: set[int], initialise: Initialise | None) -> None:
    """Raises if a module that stays dense is on the meta device and nothing says how it starts.

    Args:
        replaced: Ids of the modules that become sparse.
    """
    for path, module in model.named_modules():
        names = _meta_names(module)
        if id(module) in replaced or not names or initialise is not None or _own_start(module) is not None:
            continue
        raise ValueError(
            f"module {path!r} ({type(module).__name__}) is on the meta device and has no `reset_parameters` "
            f"for its {', '.join(names)}; say how it starts with `initialise`, a function called with "
            "each such module once it has memory"
        )


@torch.no_grad()
def bring_to_life(model: nn.Module, device: torch.device, seed: int, initialise: Initialise | None) -> None:
    """Gives memory to everything that is still on the meta device, and lets each module initialise itself.

    A module's random numbers depend on the seed and its path alone. Parts start before the whole, which may
    want to change them, as `nn.MultiheadAttention` does.
    """
    waiting = [(path, module) for path, module in model.named_modules() if _meta_names(module)]
    made: dict[int, Tensor] = {}
    for _, module in waiting:
        for name in _meta_names(module):
            _materialise(module, name, device, made)
    for path, module in reversed(waiting):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(derive_key(seed, path))
            start = _own_start(module)
            if start is not None:
                start()
            if initialise is not None and not isinstance(module, SparseLayer):
                initialise(module)
    if initialise is not None:
        for path, module in _around_frozen(model, waiting):
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(derive_key(seed, path))
                initialise(module)
    for path, module in model.named_modules():
        if isinstance(module, MultiheadAttention) and any(
            m is c for _, m in waiting for c in module.children()
        ):
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(derive_key(seed, path))
                module.start()


def _around_frozen(model: nn.Module, waiting: list[tuple[str, nn.Module]]) -> list[tuple[str, nn.Module]]:
    """The modules that contain a frozen weight of another one, innermost first.

    A frozen table is computed, not drawn, and often its parent computes it (Whisper's sinusoids).
    """
    known = {id(module) for _, module in waiting}
    paths = [path for path, m in waiting if any(not p.requires_grad for p in m.parameters(recurse=False))]
    return [
        (path, module)
        for path, module in reversed(list(model.named_modules()))
        if id(module) not in known and any(p.startswith(f"{path}." if path else "") for p in paths)
    ]


def _meta_names(module: nn.Module) -> list[str]:
    own = {**module._parameters, **module._buffers}
    return [name for name, tensor in own.items() if tensor is not None and tensor.is_meta]


def _own_start(module: nn.Module) -> Callable[[], Any] | None:
    """How a module initialises itself, if it knows."""
    if isinstance(module, SparseLayer):
        return partial(_start_bias, module)
    if isinstance(module, MultiheadAttention):
        return module.start
    for name in ("reset_parameters", "_reset_parameters"):  # nn.MultiheadAttention has the second
        if hasattr(module, name):
            return getattr(module, name)
    return None


def _materialise(module: nn.Module, name: str, device: torch.device, made: dict[int, Tensor]) -> None:
    """Tied tensors stay tied: one that was made already is used again."""
    meta = getattr(module, name)
    if id(meta) not in made:
        real = torch.zeros_like(meta, device=device)
        is_parameter = name in module._parameters
        made[id(meta)] = nn.Parameter(real, requires_grad=meta.requires_grad) if is_parameter else real
    setattr(module, name, made[id(meta)])


def _start_bias(layer: SparseLayer) -> None:
    """As torch does; Hugging Face's Conv1D starts at zero."""
    if not isinstance(layer, Conv1D):
        start_bias(layer.bias, tuple(layer.weight.shape))
