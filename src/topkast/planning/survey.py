"""Which weights of a model would be sparse, and what stays dense beside them."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, Literal

from torch import nn

from topkast.convert.choose import Skip, choose
from topkast.convert.find import WeightGroup, find, leave_frozen
from topkast.convert.standins import unpacked_attention
from topkast.core.distribution import Distribution, spread
from topkast.core.sets import Counts
from topkast.kernels.engine import ConvGeometry
from topkast.methods.base import Method
from topkast.nn.conv import geometry_of


@dataclass(frozen=True)
class Tensors:
    """Parameters of one kind, all that matters of them for their bytes.

    Attributes:
        numel: Elements of all of them.
        count: How many tensors they are.
        element_size: Bytes of an element.
        is_trained: Whether they have a gradient and an optimizer state.
    """

    numel: int
    count: int
    element_size: int = 4
    is_trained: bool = True


@dataclass(frozen=True)
class Weight:
    """A weight that is to be sparse.

    Attributes:
        name: Of its layer.
        shape: Dense.
        counts: The sizes that the distribution gives it.
        kinds: Of the layers that share it: "linear", "conv", "embedding".
        geometry: How the convolution walks that it belongs to, if it does.
        element_size: Bytes of one number.
        is_trained: Whether it has a gradient.
    """

    name: str
    shape: tuple[int, ...]
    counts: Counts
    kinds: frozenset[str]
    geometry: ConvGeometry | None
    element_size: int
    is_trained: bool


@dataclass(frozen=True)
class Survey:
    """What `survey` found.

    Attributes:
        weights: To be sparse, in module order.
        rest: Parameters that stay dense: biases, norms, layers left dense.
        buffer_bytes: Of the model's own buffers, such as the statistics of norms.
        left_dense: Layers that could be sparse or hold a matrix, and why they are not.
    """

    weights: tuple[Weight, ...]
    rest: tuple[Tensors, ...]
    buffer_bytes: int
    left_dense: dict[str, str]

    @property
    def counts(self) -> dict[str, Counts]:
        """By name."""
        return {weight.name: weight.counts for weight in self.weights}


def survey(
    model: nn.Module,
    method: Method,
    *,
    skip: Skip | None = None,
    keep_dense: Collection[str] | str = (),
    distribution: Distribution = "uniform",
    budget: Literal["layers", "model"] = "layers",
) -> Survey:
    """Looks at a dense model, which may be on the meta device, and leaves it as it is.

    Options are those of `topkast.sparsify`, and the weights and sizes are those it would make.

    Raises:
        ValueError: As `sparsify`: a name that matches nothing, a budget that no layer can take, or no layer
            that could be sparse.
    """
    if budget not in ("layers", "model"):
        raise ValueError(f"`budget` must be 'layers' or 'model', got {budget!r}")
    # Unpacked, so that projections have Parameters of their own, as they will.
    with unpacked_attention(model) as unpacked:
        findings = find(unpacked)
        groups = leave_frozen(choose(findings, skip, keep_dense), findings)
        if not groups:
            raise ValueError("no layer is left to make sparse: keep fewer of them dense")
        ours = {id(group.parameter) for group in groups}
        others = [p for p in unpacked.parameters() if id(p) not in ours]
        counts = spread(
            distribution,
            {group.name: tuple(group.parameter.shape) for group in groups},
            method.forward_sparsity,
            method.backward_sparsity,
            num_dense=sum(p.numel() for p in others) if budget == "model" else None,
            aliases={group.name: group.names for group in groups},
        )
        return Survey(
            weights=tuple(_weight(group, counts[group.name]) for group in groups),
            rest=tuple(Tensors(p.numel(), 1, p.element_size(), p.requires_grad) for p in others),
            buffer_bytes=sum(buffer.nbytes for buffer in unpacked.buffers()),
            left_dense=findings.left_dense,
        )


def _weight(group: WeightGroup, counts: Counts) -> Weight:
    kinds = {member.sparse_type.kind: member.layer for member in group.members}
    conv: Any = kinds.get("conv")
    return Weight(
        group.name,
        tuple(group.parameter.shape),
        counts,
        frozenset(kinds),
        None if conv is None else geometry_of(conv),
        group.parameter.element_size(),
        group.parameter.requires_grad,
    )
