"""`forecast`: what training a model with a method would take."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Literal

from torch import nn

from topkast.convert.choose import Skip
from topkast.convert.flops import Example, dense_flops
from topkast.core.accounting import Flops, Parameters, over_run
from topkast.core.distribution import Distribution, nearest
from topkast.core.sets import Counts
from topkast.methods.base import Method, grows_by_gradient
from topkast.planning.footprint import OPTIMIZERS, dense_bytes, total, weight_bytes
from topkast.planning.survey import Survey, Tensors, survey

# A step that is later than any schedule.
_LATER = 2**62


@dataclass(frozen=True)
class Forecast:
    """What training would take. Bytes are at the largest sets of a run, FLOPs of a step at its end.

    Attributes:
        parameters: In use, and dense.
        step: FLOPs of one worker's step, once the method's schedule has ended.
        run: FLOPs of all steps together, if their number is known.
        sparse: Bytes of the sparse weights, by part (`footprint.PARTS`).
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
        weight_bytes(w, largest_sets(method, w.counts), method, kind, reservoir=reservoir, returned=returned)
        for w in found.weights
    )
    return Forecast(
        parameters=_parameters(found),
        step=flops.at({name: method.densities(_LATER, c) for name, c in found.counts.items()}),
        run=None if steps is None else over_run(flops, method.densities, found.counts, steps),
        sparse=sparse,
        dense=total(
            dense_bytes(Tensors(w.counts.numel, 1, w.element_size, w.is_trained), kind) for w in found.weights
        ),
        rest=total(dense_bytes(tensors, kind) for tensors in found.rest),
        buffer_bytes=found.buffer_bytes,
        survey=found,
    )


def largest_sets(method: Method, counts: Counts) -> Counts:
    """|A| and |B| where they are largest in a run: pruning starts dense."""
    forward, backward = method.densities(1, counts)
    # A dense gradient to grow by is computed in pieces and not kept: it does not make B larger.
    first = round(backward * counts.numel) if not grows_by_gradient(method) else 0
    num_forward = max(counts.forward, round(forward * counts.numel))
    return Counts(counts.numel, num_forward, max(counts.backward, first, num_forward))


def _parameters(found: Survey) -> Parameters:
    return Parameters(
        sparse=sum(c.forward for c in found.counts.values()),
        sparse_numel=sum(c.numel for c in found.counts.values()),
        rest=sum(tensors.numel for tensors in found.rest),
    )
