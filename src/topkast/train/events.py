"""What a run has to say of itself: the events of its record, measured, and the FLOPs of its steps."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from topkast.core.weight import SparseWeight
from topkast.cost.accounting import Flops
from topkast.cost.flops import dense_flops
from topkast.cost.parameters import layer_stats, parameters
from topkast.kernels.machine import peak_memory
from topkast.methods.base import Method
from topkast.store.run import Bytes, End, Layer, LayerPoint, Progress, Start
from topkast.train.task import device_of
from topkast.train.trainer import Trainer


def count_flops(trainer: Trainer) -> Flops:
    """FLOPs of a step at the present sets."""
    example = tree_map(lambda part: part.to(device_of(trainer.model)), trainer.task.example())
    if trainer.sparse is None:
        return dense_flops(trainer.model, example)
    return trainer.sparse.flops(example)


def num_parameters(trainer: Trainer) -> dict[str, float]:
    """In use (A and what is dense), and of the dense network."""
    counted = parameters(trainer.model, {} if trainer.sparse is None else trainer.sparse.weights)
    return {"used": counted.used, "dense": counted.dense}


def start(trainer: Trainer, name: str) -> Start:
    """The first event: what is trained, and what a step costs."""
    flops, task = count_flops(trainer), trainer.task
    assert trainer.config.train.steps is not None
    return Start(
        name=name,
        task=trainer.config.data.task,
        quality_name=task.quality_name,
        higher_is_better=task.higher_is_better,
        steps=trainer.config.train.steps,
        parameters=num_parameters(trainer),
        flops_per_step={"sparse": flops.total, "dense": flops.dense_total},
        layers=_layers(trainer, flops),
        title=task.title,
        unit=task.unit,
        units_per_step=task.units_per_step,
    )


def _layers(trainer: Trainer, flops: Flops) -> dict[str, Layer]:
    if trainer.sparse is None:
        return {}
    costs = {layer.name: layer for layer in flops.layers}
    table = {}
    for name, weight in trainer.sparse.weights.items():
        cost = costs.get(name)
        table[name] = Layer(
            shape=tuple(weight.shape),
            numel=weight.numel(),
            forward=weight.counts.forward,
            backward=weight.counts.backward,
            engine=weight.describe_engine(),
            flops={} if cost is None else {"sparse": cost.total, "dense": cost.dense_total},
        )
    return table


# Steps over which a loss is averaged, at their multiples.
LOSS_EVERY = 10


def regular_losses(losses: Sequence[float], step: int) -> tuple[tuple[int, float], ...]:
    """(step, mean of the losses of the ten steps up to it) at every tenth step; nothing if there is only one.

    Args:
        losses: Of the last steps, in order.
        step: The number of the last of them.
    """
    first = step - len(losses) + 1
    ends = [end for end in range(first, step + 1) if end % LOSS_EVERY == 0]
    if len(losses) <= LOSS_EVERY:
        return ()
    parts = {end: losses[max(0, end - LOSS_EVERY + 1 - first) : end - first + 1] for end in ends}
    return tuple((end, sum(part) / len(part)) for end, part in parts.items())


def progress(
    trainer: Trainer, *, losses: Sequence[float], quality: float, seconds: float, flops: float
) -> Progress:
    """An event in the middle: how far it is and how the sets moved. `losses` are those since the last one."""
    weights = {} if trainer.sparse is None else trainer.sparse.weights
    return Progress(
        step=trainer.step,
        seconds=seconds,
        loss=sum(losses) / len(losses),
        quality=quality,
        flops=flops,
        layers={name: _moved(weight, trainer.method) for name, weight in weights.items()},
        lr=float(trainer.optimizer.param_groups[0]["lr"]),
        losses=regular_losses(losses, trainer.step),
    )


def _moved(weight: SparseWeight, method: Method | None) -> LayerPoint:
    has_two_clocks = method is not None and method.has_two_clocks
    stats = layer_stats(weight)
    values = weight.values.detach().abs()
    return LayerPoint(
        changed=stats.changed,
        used=stats.reservoir_used,
        activated=stats.reservoir_activated,
        mean_a=_mean(values[weight.active]),
        mean_explored=_mean(values[~weight.active]),
        forward=stats.evaluated,  # |A|, or what a method with gates leaves of it
        backward=stats.backward,
        exchanged=stats.exchanged if has_two_clocks else math.nan,
        early=stats.early_exchanges if has_two_clocks else None,
    )


def _mean(values: Tensor) -> float:
    return float(values.mean()) if values.numel() else math.nan


def end(trainer: Trainer, *, seconds_per_step: float, bytes_held: Bytes | None, stopped: str | None) -> End:
    """The last event. `stopped` says why it ended before its last step."""
    weights = {} if trainer.sparse is None else trainer.sparse.weights
    engines = {name: weight.describe_engine() for name, weight in weights.items() if weight.engine == "auto"}
    return End(trainer.step, seconds_per_step, bytes_held, peak_memory(), stopped, engines)


def held(trainer: Trainer) -> Bytes:
    """Bytes by layer and part, counted where gradients and Plans exist: after one more backward pass.

    The pass is undone: generators and gradients are as they were.
    """
    batches = trainer.batches.get_state()
    with torch.random.fork_rng(devices=[]):
        trainer.task.aside().loss(trainer.model, trainer.step, trainer.batches).backward()
    trainer.batches.set_state(batches)
    try:
        if trainer.sparse is None:
            return Bytes({}, _dense_bytes(trainer), _dense_bytes(trainer))
        memory = trainer.sparse.memory()
        return Bytes(memory.layers, memory.sparse, memory.dense)
    finally:
        trainer.optimizer.zero_grad()


def _dense_bytes(trainer: Trainer) -> int:
    total = 0
    for p in trainer.model.parameters():
        state = trainer.optimizer.state.get(p, {}).values()
        tensors = [p, p.grad, *state]
        total += sum(t.nbytes for t in tensors if isinstance(t, Tensor) and t.shape == p.shape)
    return total


class Spending:
    """What the steps of one run cost.

    Where a method's schedule says how dense each step is, that counts: RigL's dense gradients, pruning's way
    down, exploration that ends. Where sizes follow from training itself, those of the last look do.

    Args:
        trainer: Of the run.
        flops: Of one of its steps, by layer.
    """

    def __init__(self, trainer: Trainer, flops: Flops) -> None:
        self._trainer, self._flops = trainer, flops
        self._known: dict[tuple[tuple[float, float], ...], float] = {}

    @property
    def is_scheduled(self) -> bool:
        """Whether the cost of every step is known from its number."""
        method = self._trainer.method
        return method is None or method.plans_sizes or type(method).densities is not Method.densities

    def of(self, step: int, at_last_look: float) -> float:
        """FLOPs of step number `step`; 1 is the first."""
        method, sparse = self._trainer.method, self._trainer.sparse
        if method is None or sparse is None:
            return float(self._flops.total)
        if not self.is_scheduled:
            return at_last_look
        densities = {name: method.densities(step, weight.target) for name, weight in sparse.weights.items()}
        key = tuple(densities.values())
        if key not in self._known:
            self._known[key] = float(self._flops.at(densities).total)
        return self._known[key]
