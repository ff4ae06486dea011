"""`Recipe`: one way of training, whatever the scale and the seed."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Literal

Workload = Literal["images", "bytes", "small-bytes", "words", "given"]


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """What is trained and how; times are shares of the run, so that every scale can have its own steps.

    Attributes:
        workload: Which network and data: the paper's ImageNet, enwik8 with the large and with the small
            Transformer, and WikiText-103 have their counterpart in each scale; "given" is that of
            a configuration.
        method: By name.
        forward: Forward sparsity; None for dense.
        backward: Backward sparsity of Top-KAST.
        length: Of the run, in multiples of the usual one.
        stop: Share of the run after which B∖A is not updated any more (the paper's t).
        exploration: How B∖A is chosen; None is by magnitude.
        refresh: N in steps of the paper's 32,000, scaled with the run; None is every step.
        refresh_steps: N as it is; overrides `refresh`.
        penalty: λ; None is that of the scale.
        penalty_power: 2 for θ², 1 for |θ|.
        variant: Of the network or its training, as the scale describes it, such as "ends-dense".
        masks: Whether the masks of 5/32 of the run apart are compared.
    """

    workload: Workload = "given"
    method: str = "topkast"
    forward: float | None = None
    backward: float | None = None
    length: float = 1.0
    stop: float | None = None
    exploration: Literal["random"] | None = None
    refresh: int | None = None
    refresh_steps: int | None = None
    penalty: float | None = None
    penalty_power: int = 2
    variant: str = ""
    masks: bool = False

    def without_exploration(self) -> Recipe:
        """The same with B = A, if it is Top-KAST: a control, by which claims on exploration must fail."""
        if self.method != "topkast":
            return self
        return dataclasses.replace(self, backward=self.forward, exploration=None)


def topkast(workload: Workload, forward: float, backward: float, **more: object) -> Recipe:
    """Top-KAST at these sparsities."""
    return Recipe(workload=workload, forward=forward, backward=backward, **more)  # pyright: ignore[reportArgumentType]


def other(workload: Workload, method: str, forward: float | None = None, **more: object) -> Recipe:
    """Another method, with B = A or as it has it."""
    return Recipe(workload=workload, method=method, forward=forward, **more)  # pyright: ignore[reportArgumentType]
