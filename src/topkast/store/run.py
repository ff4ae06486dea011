"""A run as data: its events, which are the lines of the record, and the whole that they make.

The events are `Start`, `Progress`, `Extension`, `Reference` and `End`; `store.record` writes and reads
them. NaN stands for a number that is not known.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Layer:
    """One sparse weight as it was at the start.

    Attributes:
        shape: Of the dense weight.
        numel: Its elements.
        forward: |A|.
        backward: |B|.
        engine: What computes its products.
        flops: Per step, "sparse" and "dense", where they are known.
    """

    shape: tuple[int, ...]
    numel: int
    forward: int
    backward: int
    engine: str
    flops: dict[str, float]


@dataclass(frozen=True)
class LayerPoint:
    """One sparse weight at one moment; NaN where something is not known or a set is empty.

    Attributes:
        changed: Share of all its elements that entered or left A at the last refresh (Figure 3a).
        used: Share of the initial C that has been in B.
        activated: Share of the initial C that has been in A (Figure 3b).
        mean_a: Mean |θ| on A.
        mean_explored: Mean |θ| on B∖A.
        forward: |A|, or how many of A evaluation uses where gates make some zero, if it was recorded.
        backward: |B|, if it was recorded.
        exchanged: Share of all its elements that entered B at the last exchange; NaN where A and B are
            chosen together.
        early: How many exchanges came before their time; None where A and B are chosen together.
    """

    changed: float
    used: float
    activated: float
    mean_a: float
    mean_explored: float
    forward: int | None
    backward: int | None
    exchanged: float = math.nan
    early: int | None = None


@dataclass(frozen=True)
class Progress:
    """The run at one moment.

    Attributes:
        step: Steps taken.
        seconds: Training time so far, without evaluation.
        loss: On training data.
        quality: On held-out data.
        flops: Spent so far.
        layers: Sparse weight → how it was.
        lr: The learning rate.
        losses: (step, mean loss of the ten steps up to it) since the moment before, where moments are
            further apart than that.
    """

    step: int
    seconds: float
    loss: float
    quality: float
    flops: float
    layers: dict[str, LayerPoint] = field(default_factory=dict)
    lr: float = math.nan
    losses: tuple[tuple[int, float], ...] = ()


def is_dense(name: str) -> bool:
    """Whether a run of this name is that of the dense network."""
    return name.strip().lower() == "dense"


@dataclass(frozen=True)
class Reference:
    """What the run was compared with: the same task and seed, trained another way.

    Attributes:
        name: Such as "dense".
        quality: At its end.
        seconds_per_step: Mean.
        bytes: Of weights, gradients and optimizer; NaN if it was not recorded.
        parameters: In use; NaN if it was not recorded.
        points: Its curve.
        loss: At its end.
        steps: How many it took.
    """

    name: str
    quality: float
    seconds_per_step: float
    bytes: float
    parameters: float
    points: tuple[Progress, ...]
    loss: float = math.nan
    steps: float = math.nan

    @property
    def is_dense(self) -> bool:
        """Whether it is the dense network, by its name."""
        return is_dense(self.name)


@dataclass(frozen=True)
class Bytes:
    """What the run held at its end.

    Attributes:
        layers: Sparse weight → part → bytes; parts are `cost.memory.PARTS`, "total" and "dense".
        sparse: All of the model.
        dense: The same model, dense.
    """

    layers: dict[str, dict[str, int]]
    sparse: int
    dense: int

    def part(self, name: str) -> int:
        """Over all sparse weights."""
        return sum(parts.get(name, 0) for parts in self.layers.values())

    @property
    def rest(self) -> int:
        """Biases, norms and dense layers."""
        return max(0, self.sparse - self.part("total"))


@dataclass(frozen=True)
class End:
    """How a run ended.

    Attributes:
        step: The last one.
        seconds_per_step: Mean, without evaluation.
        bytes: None if they were not counted.
        peak_rss: Most bytes that the process held; None if it was not measured.
        stopped: Why it ended before its time; None if it did not.
        engines: Sparse weight → what computed its products, where "auto" has chosen that.
    """

    step: int
    seconds_per_step: float
    bytes: Bytes | None
    peak_rss: int | None
    stopped: str | None
    engines: dict[str, str] = field(default_factory=dict)


@dataclass
class Start:
    """What is trained, and what a step costs.

    Attributes:
        name: Such as "Top-KAST 90/80".
        task: Such as "text"; runs of different tasks cannot be compared.
        quality_name: Such as "bits per byte".
        higher_is_better: Whether more of it is better.
        steps: How many were asked for.
        parameters: "used" and "dense".
        flops_per_step: "sparse" and "dense".
        layers: Sparse weights; none if the run is dense.
        title: What it is trained on, in a line.
        unit: What a step takes in, such as "tokens".
        units_per_step: How many; NaN if it was not recorded.
    """

    name: str
    task: str
    quality_name: str
    higher_is_better: bool
    steps: int
    parameters: dict[str, float] = field(default_factory=dict)
    flops_per_step: dict[str, float] = field(default_factory=dict)
    layers: dict[str, Layer] = field(default_factory=dict)
    title: str = ""
    unit: str = "units"
    units_per_step: float = math.nan


@dataclass(frozen=True)
class Extension:
    """The run goes on for longer than it was to.

    Attributes:
        step: Steps taken by then.
        steps: How many it is to take now.
    """

    step: int
    steps: int


Event = Start | Progress | Extension | Reference | End


@dataclass
class Run(Start):
    """All that is known of a run: what was said at its start, and what came after.

    Attributes:
        folder: Where it is.
        points: In order of steps.
        references: What it was compared with, by name.
        end: None while it runs, or if it was killed.
        notes: What a reader must know, such as a line that was cut off.
        config: Text of its configuration.
        environment: Versions and machine.
        sample: Text that the network wrote at its end, if it is one of text.
    """

    folder: Path = Path()
    points: list[Progress] = field(default_factory=list)
    references: dict[str, Reference] = field(default_factory=dict)
    end: End | None = None
    notes: list[str] = field(default_factory=list)
    config: str = ""
    environment: dict[str, Any] = field(default_factory=dict)
    sample: str = ""

    @property
    def last(self) -> Progress:
        """The latest moment that was recorded."""
        return self.points[-1]

    @property
    def seconds_per_step(self) -> float:
        """Mean; for a run that has not ended, up to its latest record."""
        if self.end is not None:
            return self.end.seconds_per_step
        return self.last.seconds / self.last.step if self.last.step else math.nan

    @property
    def used(self) -> float:
        """Parameters in use at the last record; with a schedule of sizes not those of the start."""
        gone = [
            self.layers[name].forward - point.forward
            for name, point in self.last.layers.items()
            if name in self.layers and point.forward is not None
        ]
        return self.parameters.get("used", math.nan) - sum(gone)

    def engine(self, name: str) -> str:
        """What computes the products of a sparse weight, as it was last recorded."""
        own = self.layers[name].engine
        return own if self.end is None else self.end.engines.get(name, own)

    @property
    def has_other_sizes(self) -> bool:
        """Whether |A| or |B| of a layer was ever recorded as another than at the start."""
        return any(
            (point.forward, point.backward) not in ((None, None), (layer.forward, layer.backward))
            for record in self.points
            for name, layer in self.layers.items()
            if (point := record.layers.get(name)) is not None
        )

    @property
    def flops_in_step(self) -> float:
        """FLOPs of a step: as at the start, or the mean of the run where sizes have changed."""
        if self.has_other_sizes and self.last.step:
            return self.last.flops / self.last.step
        return self.flops_per_step.get("sparse", math.nan)

    @property
    def bytes(self) -> Bytes | None:
        """None if they were not counted, as in a run that has not ended."""
        return None if self.end is None else self.end.bytes

    @property
    def is_sparse(self) -> bool:
        return bool(self.layers)
