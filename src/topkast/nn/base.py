"""`SparseLayer`: what all sparse layers share. Each has one `SparseWeight` and whatever else stays dense."""

from __future__ import annotations

import math
from abc import abstractmethod
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from topkast.core.build import Chooser, Drawn, make_weight, scale_start
from topkast.core.floor import Grid
from topkast.core.initial import How, Initial, Normal, fans, initial, parts_of
from topkast.core.loading import check_states
from topkast.core.select import derive_key
from topkast.core.sets import Counts
from topkast.core.weight import SparseWeight
from topkast.kernels.auto import Auto
from topkast.kernels.engine import ConvGeometry, Engine
from topkast.kernels.engines import check_engine, why_not
from topkast.nn.belongings import tags
from topkast.text import shape_text


class SparseMethod(Chooser, Protocol):
    """What is asked of a method when a layer is constructed by itself; see `methods.Method`."""

    @property
    def forward_sparsity(self) -> float: ...

    @property
    def backward_sparsity(self) -> float: ...


class SparseLayer(nn.Module):
    """A layer whose weight is sparse.

    Attributes:
        weight: The state: positions and values of B. May be shared with another layer.
        bias: Dense, or None.
        kind: Which products it needs: "linear", "conv" or "embedding".
        label: What it replaces, for tables.
        dense_type: The torch layer it is like, or None if it cannot be constructed by itself.
        private: Attributes of its own that its dense twin has no use for.
    """

    kind: str
    label: str
    dense_type: type[nn.Module] | None = None
    private: tuple[str, ...] = ()
    weight: SparseWeight
    bias: nn.Parameter | None

    def __init__(
        self,
        *sizes: Any,
        method: SparseMethod,
        init: How | None = None,
        seed: int | None = None,
        name: str = "",
        engine: str = "auto",
        dtype: torch.dtype | None = None,
        device: torch.device | str = "cpu",
        **options: Any,
    ) -> None:
        """A layer by itself, drawn sparse with an implicit reservoir: nothing of dense size is made.

        Args:
            sizes: As torch's layer takes them, and so are `options` and `dtype`.
            method: Which sets; ``topkast.Handle(model, method)`` then drives the model's refreshes.
            init: The distribution of θ⁰, see `topkast.sparsify`; by default the torch layer's own.
            seed: With the name it decides θ⁰. By default drawn from torch's generator.
            name: For messages; layers of one seed need names of their own, or they start alike.
            engine: See `topkast.sparsify`.
            device: Where the layer lives.
        """
        if self.dense_type is None:
            raise TypeError(f"{type(self).__name__} is made by topkast.sparsify only")
        with torch.device("meta"):
            layer: Any = self.dense_type(*sizes, **options, dtype=dtype)
        if getattr(layer, "padding_idx", None) is not None:
            raise ValueError("a padding row starts at zero, which an implicit reservoir does not know")
        shape = tuple(layer.weight.shape)
        numel = layer.weight.numel()
        counts = Counts.from_density(numel, 1 - method.forward_sparsity, 1 - method.backward_sparsity)
        key = derive_key(int(torch.randint(2**62, ())) if seed is None else seed, name)
        wanted, by = parts_of(init)
        distribution = own_initial(layer, shape) if wanted is None else initial(wanted, shape)
        start = Drawn(shape, distribution, layer.weight.dtype, device)
        grid = self.grid_of(layer)
        start = scale_start(start, by, method, counts, name=name, key=key, grid=grid)
        weight = make_weight(start, method, counts, name=name, key=key, grid=grid)
        if getattr(layer, "bias", None) is not None:
            layer.bias = nn.Parameter(torch.empty_like(layer.bias, device=device))
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(key)
                start_bias(layer.bias, shape)
        self._take(layer, weight)
        check_engine(engine)
        reason = why_not(engine, self.kind, self.geometry, weight.device.type)
        if reason is not None and engine != "auto":
            raise ValueError(f"engine {engine!r} cannot compute this layer: {reason}")
        weight.engine = engine if reason is None else "masked"

    def _take(self, layer: Any, weight: SparseWeight) -> None:
        """Becomes the counterpart of a torch layer, with the given weight and the layer's own bias."""
        nn.Module.__init__(self)
        self.weight = weight
        self.register_parameter("bias", getattr(layer, "bias", None))
        self.register_load_state_dict_pre_hook(check_states)

    def shown_sizes(self) -> str:
        """Its sizes, as torch's layer shows them; by default the shape of its weight."""
        return shape_text(self.weight.shape)

    def extra_repr(self) -> str:
        counts, weight = self.weight.counts, self.weight
        bias = "" if self.kind == "embedding" else f", bias={self.bias is not None}"
        densities = f"density={counts.forward_density:.3g}"
        if counts.backward != counts.forward:
            densities += f" (backward {counts.backward_density:.3g})"
        return f"{self.shown_sizes()}{bias}, {densities}, engine={weight.describe_engine()!r}"

    @classmethod
    def from_dense(cls, layer: Any, weight: SparseWeight) -> SparseLayer:
        """The sparse counterpart of `layer`, with the given weight and the layer's own bias."""
        new = cls.__new__(cls)
        new._take(layer, weight)
        return new

    @classmethod
    def grid_of(cls, layer: Any) -> Grid:
        """Which outputs and inputs the elements of this torch layer's weight join."""
        return Grid.of(tuple(layer.weight.shape), getattr(layer, "groups", 1))

    def __setattr__(self, name: str, value: Any) -> None:
        mine = self.__dict__.get("_modules", {}).get("weight")
        if name == "weight" and isinstance(mine, SparseWeight) and not isinstance(value, SparseWeight):
            raise TypeError(
                f"layer {mine.name!r} is sparse, its weight cannot be replaced by a {type(value).__name__}: "
                "set the dense weight before sparsify, or `topkast.densify` the model first"
            )
        super().__setattr__(name, value)

    @property
    def geometry(self) -> ConvGeometry | None:
        """How a convolution walks; None for other layers."""
        return None

    @property
    def engine(self) -> Engine | Auto:
        """The engine that computes this layer's products."""
        return self.weight.engine_impl()

    @abstractmethod
    def to_dense(self, weight: nn.Parameter) -> nn.Module:
        """The plain torch layer with the given dense weight and this layer's bias."""

    def theta(self) -> Tensor:
        """θ, dense. For inspection of small layers."""
        return self.weight.theta()

    def alpha(self) -> Tensor:
        """α: θ on A, zero elsewhere; dense. For inspection of small layers."""
        return self.weight.alpha()

    def forward_mask(self) -> Tensor:
        """A as a dense bool tensor."""
        return self.weight.forward_mask()

    def backward_mask(self) -> Tensor:
        """B as a dense bool tensor."""
        return self.weight.backward_mask()

    def _build(
        self, dense_type: type[nn.Module], weight: nn.Parameter, *sizes: Any, **options: Any
    ) -> nn.Module:
        """A torch layer with the given weight and a copy of this layer's bias.

        It is built on the meta device: no memory, and no random numbers, are spent on what is replaced.
        """
        with torch.device("meta"):
            layer = dense_type(*sizes, **options)
        layer.register_parameter("weight", weight)
        if self.bias is not None:
            bias = self.bias
            copy = nn.Parameter(bias.detach().clone(), requires_grad=bias.requires_grad)
            vars(copy).update(tags(bias))
            layer.register_parameter("bias", copy)
        return layer


# ---- how layers start ----------------------------------------------------------------------------------

_KNOWN: tuple[type[nn.Module], ...] = (nn.Linear, nn.Embedding, nn.Conv1d, nn.Conv2d, nn.Conv3d)


def own_initial(layer: Any, shape: tuple[int, ...]) -> Initial:
    """What the layer's own `reset_parameters` draws its weight from.

    Raises:
        ValueError: The layer has an initialisation that is not torch's.
    """
    for known in _KNOWN:
        if isinstance(layer, known) and type(layer).reset_parameters is known.reset_parameters:  # pyright: ignore
            return Normal(1.0) if known is nn.Embedding else initial("torch", shape)
    raise ValueError(
        f"{type(layer).__name__} has an initialisation of its own, whose distribution is not known; "
        "name it with `init`, such as topkast.Normal(0.02)"
    )


@torch.no_grad()
def start_bias(bias: nn.Parameter | None, shape: tuple[int, ...]) -> None:
    """Uniform in ±1/√fan-in of a weight of this shape, as torch's Linear and Conv do."""
    if bias is not None:
        bound = 1 / math.sqrt(fans(shape)[0])
        bias.uniform_(-bound, bound)
