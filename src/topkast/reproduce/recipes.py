"""What is trained and how, at whatever size: a recipe of a row, and the controls that spoil one."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from topkast.train.config import section_of

Workload = Literal["images", "pictures", "bytes", "small-bytes", "words", "decoder", "given"]


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """What is trained and how; times are shares of the run, so that every scale can have its own steps.

    Attributes:
        workload: Which network and data. The paper's ImageNet, enwik8 with the large and with the small
            Transformer, and WikiText-103 have their counterpart in each scale. "pictures" is a convolutional
            network, where "images" is none. "decoder" is a small
            GPT-style network on enwik8, the same in each but for its steps. "given" is that of a
            configuration.
        method: By name.
        forward: Forward sparsity; None for dense.
        backward: Backward sparsity of Top-KAST.
        length: Of the run, in multiples of the usual one.
        stop: Share of the run after which B∖A is not updated any more (the paper's t).
        exploration: How B∖A is chosen; None is by magnitude.
        refresh: N in steps of the paper's 32,000, scaled with the run.
        refresh_steps: N as it is; overrides `refresh`. Where neither is given, A is chosen at every step and
            B every 100.
        exchange_steps: Steps from one exchange to the next; None is N, one clock for A and B as in the paper.
        lr: Learning rate; None is what the search has found, or what follows from the library's rule.
        rate_factor: What the rate is multiplied by: a control has a wrong one.
        letter: Whether Top-KAST follows the paper's letter under Adam too.
        penalty: λ; None is 1e-4, and under Adam what the library has there.
        penalty_power: 2 for θ², 1 for |θ|.
        variant: Of the network or its training, as the scale describes it, such as "ends-dense".
        masks: Whether the masks of 5/32 of the run apart are compared.
        options: More of the run's options, by name.
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
    exchange_steps: int | None = None
    lr: float | None = None
    rate_factor: float = 1.0
    letter: bool = False
    penalty: float | None = None
    penalty_power: int = 2
    variant: str = ""
    masks: bool = False
    options: tuple[tuple[str, Any], ...] = ()

    def values(self) -> dict[str, dict[str, Any]]:
        """`options` by section.

        Raises:
            ValueError: There is no option of a name.
        """
        found: dict[str, dict[str, Any]] = {}
        for name, value in self.options:
            found.setdefault(section_of(name), {})[name] = value
        return found


def without_exploration(recipe: Recipe) -> Recipe:
    """The same with B = A, if it is Top-KAST: claims on exploration must fail."""
    if recipe.method != "topkast":
        return recipe
    return dataclasses.replace(recipe, backward=recipe.forward, exploration=None)


def with_wrong_rate(recipe: Recipe) -> Recipe:
    """The same at 30 times the rate, if it is Top-KAST: it must be found not to have learned."""
    return dataclasses.replace(recipe, rate_factor=30.0) if recipe.method == "topkast" else recipe


def with_shuffled_labels(recipe: Recipe) -> Recipe:
    """The same on images whose labels say nothing: nobody learns."""
    return dataclasses.replace(recipe, options=(*recipe.options, ("shuffled_labels", True)))


CONTROLS: Mapping[str, Callable[[Recipe], Recipe]] = {
    "no-exploration": without_exploration,
    "wrong-rate": with_wrong_rate,
    "shuffled-labels": with_shuffled_labels,
}


def topkast(workload: Workload, forward: float, backward: float, **more: object) -> Recipe:
    """Top-KAST at these sparsities."""
    return Recipe(workload=workload, forward=forward, backward=backward, **more)  # pyright: ignore[reportArgumentType]


def other(workload: Workload, method: str, forward: float | None = None, **more: object) -> Recipe:
    """Another method, with B = A or as it has it."""
    return Recipe(workload=workload, method=method, forward=forward, **more)  # pyright: ignore[reportArgumentType]
