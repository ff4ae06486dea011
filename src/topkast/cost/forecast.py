"""What training a model with a method would take, from shapes alone: parameters, FLOPs, bytes, traffic."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, Literal

from torch import nn

from topkast.core.distribution import Distribution, nearest, spread
from topkast.core.sets import Counts
from topkast.cost.accounting import Flops, over_run
from topkast.cost.flops import Example, dense_flops, unpacked_attention
from topkast.cost.footprint import OPTIMIZERS, Tensors, Weight, dense_footprint, total, weight_footprint
from topkast.cost.parameters import Parameters
from topkast.methods.base import Method, grows_by_gradient
from topkast.nn.find import Skip, WeightGroup, find, wanted_groups
from topkast.nn.layers import geometry_of

# A step that is later than any schedule.
_LATER = 2**62


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


@dataclass(frozen=True)
class Forecast:
    """What training would take. Bytes are at the largest sets of a run, FLOPs of a step at its end.

    Attributes:
        parameters: In use, and dense.
        step: FLOPs of one worker's step, once the method's schedule has ended.
        run: FLOPs of all steps together, if their number is known.
        sparse: Bytes of the sparse weights, by part (`memory.PARTS`).
        dense: Bytes of the same weights dense.
        rest: Bytes of what is dense in both: "weight", "gradient" and "optimizer".
        buffer_bytes: The model's own buffers, such as the statistics of norms, which DistributedDataParallel
            sends round before each forward pass. Sets and reservoirs stay where they are.
        survey: Which weights, and their sizes.
    """

    parameters: Parameters
    step: Flops
    run: Flops | None
    sparse: dict[str, int]
    dense: dict[str, int]
    rest: dict[str, int]
    buffer_bytes: int
    survey: Survey

    @property
    def sparse_bytes(self) -> int:
        """All of it."""
        return sum(self.sparse.values()) + sum(self.rest.values())

    @property
    def dense_bytes(self) -> int:
        """All of the dense model."""
        return sum(self.dense.values()) + sum(self.rest.values())

    @property
    def sparse_gradient_bytes(self) -> int:
        """What is added up over workers: a number for each element of B, and for the dense rest."""
        return self.sparse["gradient"] + self.rest["gradient"]

    @property
    def dense_gradient_bytes(self) -> int:
        """The same of the dense model."""
        return self.dense["gradient"] + self.rest["gradient"]

    def largest(self, memory: int) -> tuple[int, int]:
        """Parameters of the largest dense model, and of the largest dense-equivalent one, in so many bytes.

        A model f times this one, in all its parts and at the same densities, takes f times the bytes: there
        is room for memory/bytes as many parameters. Activations are left out.
        """
        room = memory * self.parameters.dense
        return room // self.dense_bytes, room // self.sparse_bytes


def forecast(
    model: nn.Module,
    example: Example,
    method: Method,
    *,
    optimizer: str = "adam",
    skip: Skip | None = None,
    keep_dense: Collection[str] | str = (),
    distribution: Distribution = "uniform",
    budget: Literal["layers", "model"] = "layers",
    reservoir: Literal["stored", "implicit"] = "stored",
    returned: float = 0.05,
    steps: int | None = None,
) -> Forecast:
    """What training would take, from shapes alone.

    Args:
        model: Dense; on the meta device it may be of any size.
        example: What one worker calls it with in a step.
        method: Which sets, and when.
        optimizer: "sgd", "momentum" (SGD with it), "adam" or "adamw".
        skip, keep_dense, distribution, budget: See `topkast.sparsify`.
        reservoir: "stored" or "implicit".
        returned: Share of C that has been in B by the end of the run, for an implicit reservoir.
        steps: Of the run, for its FLOPs.

    Raises:
        ValueError: An unknown name, a share that is none, a budget that no layer can take, or a schedule that
            ends after the run.
    """
    if optimizer not in OPTIMIZERS:
        raise ValueError(f"`optimizer` must be one of {nearest(optimizer, OPTIMIZERS)}, got {optimizer!r}")
    if reservoir not in ("stored", "implicit"):
        raise ValueError(f"`reservoir` must be 'stored' or 'implicit', got {reservoir!r}")
    if not 0 <= returned <= 1:
        raise ValueError(f"`returned` is the share of C that has been in B, from 0 to 1, got {returned!r}")
    if steps is not None:
        method.check_run(steps)
    found = survey(model, method, skip=skip, keep_dense=keep_dense, distribution=distribution, budget=budget)
    flops, kind = dense_flops(model, example), OPTIMIZERS[optimizer]
    sparse = total(
        weight_footprint(
            w, largest_sets(method, w.counts), method, kind, reservoir=reservoir, returned=returned
        )
        for w in found.weights
    )
    return Forecast(
        parameters=_parameters(found),
        step=flops.at({name: method.densities(_LATER, c) for name, c in found.counts.items()}),
        run=None if steps is None else over_run(flops, method.densities, found.counts, steps),
        sparse=sparse,
        dense=total(
            dense_footprint(Tensors(w.counts.numel, 1, w.element_size, w.is_trained), kind)
            for w in found.weights
        ),
        rest=total(dense_footprint(tensors, kind) for tensors in found.rest),
        buffer_bytes=found.buffer_bytes,
        survey=found,
    )


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
        groups = wanted_groups(findings, skip, keep_dense)
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


def largest_sets(method: Method, counts: Counts) -> Counts:
    """|A| and |B| where they are largest in a run: pruning and annealing start dense."""
    forward, backward = method.densities(1, counts)
    # A dense gradient to grow by is computed in pieces and not kept: it does not make B larger.
    first = round(backward * counts.numel) if not grows_by_gradient(method) else 0
    sizes = [counts, *(method.sizes(step, counts) for step in method.turns())]
    num_forward = max(round(forward * counts.numel), *(size.forward for size in sizes))
    return Counts(counts.numel, num_forward, max(first, num_forward, *(size.backward for size in sizes)))


def ring_bytes(num_bytes: int, workers: int) -> float:
    """What each worker sends to add up `num_bytes` over all of them in a ring: 2·(W - 1)/W of it.

    W - 1 times a share of 1/W to add up, and as often to hand the sums round (Patarasuk and Yuan 2009).
    """
    return 2 * (workers - 1) / workers * num_bytes


def seconds(num_bytes: float, gigabits: float) -> float:
    """8·bytes over the speed of a link in Gbit/s (10⁹ bits), as if nothing else used it."""
    return 8 * num_bytes / (1e9 * gigabits)


def why_alone(method: Method) -> str | None:
    """Why a method cannot run with several workers, as `Handle.attach` refuses it, or None if it can."""
    return None if method.plans_sizes else "changes the sizes of its sets"


def _parameters(found: Survey) -> Parameters:
    return Parameters(
        sparse=sum(c.forward for c in found.counts.values()),
        sparse_numel=sum(c.numel for c in found.counts.values()),
        rest=sum(tensors.numel for tensors in found.rest),
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
