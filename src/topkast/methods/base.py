"""What a method is: a choice of A and B, and when to choose again."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from topkast.core.anneal import Schedule
from topkast.core.distribution import check_sparsities
from topkast.core.floor import Floor, Grid
from topkast.core.moment import Moment
from topkast.core.schedule import check_steps
from topkast.core.sets import Counts, Sets
from topkast.core.slots import Companion
from topkast.core.weight import SparseWeight


@dataclass(frozen=True)
class Method(ABC):
    """A sparse-training method. Holds settings only; all state is in the weights.

    A new method says when (`is_due`) and what (`choose`). The rest has a default.

    Attributes:
        forward_sparsity: Share of weights outside A, 1 - D.
        backward_sparsity: Share of weights outside B, 1 - D - M. At most `forward_sparsity`.
    """

    forward_sparsity: float
    backward_sparsity: float

    def __post_init__(self) -> None:
        for name in ("forward_sparsity", "backward_sparsity"):
            if isinstance(getattr(self, name), Schedule):
                raise TypeError(
                    f"`{name}` of {type(self).__name__} must be a number in [0, 1), got a schedule: its sets "
                    "keep their sizes, or have a schedule of their own. TopKAST follows one"
                )
        check_sparsities(
            self.forward_sparsity,
            self.backward_sparsity,
            "`forward_sparsity`",
            "`backward_sparsity`",
        )

    @classmethod
    def from_settings(cls, settings: Mapping[str, Any]) -> Method:
        """The method with these settings, as a file of this version or an older one has them."""
        return cls(**settings)

    # ---- the sets -----------------------------------------------------------------------------------

    @abstractmethod
    def is_due(self, step: int) -> bool:
        """Whether sets are chosen anew after step number `step` (1 is the first)."""

    def refreshes_after(self, step: int) -> bool:
        """Whether A is chosen anew within B after step number `step`, if the sets are not due."""
        return False

    @property
    def has_two_clocks(self) -> bool:
        """Whether A is chosen within B more often than B is chosen."""
        return False

    @property
    def keeps_top(self) -> bool:
        """Whether A must be the Top-K of all θ after every refresh.

        If an element of C could be larger than one of A, an exchange then comes before its time.
        """
        return False

    @property
    def advantage(self) -> float:
        """What the magnitudes of present members of A are multiplied by when sets are chosen."""
        return 1.0

    def floor(self, grid: Grid) -> Floor | None:
        """How many elements of A each output and input of a weight keeps; None for no such rule."""
        return None

    @abstractmethod
    def choose(self, moment: Moment) -> Sets:
        """The sets of one weight, also the first ones."""

    def choose_together(self, moments: Mapping[str, Moment]) -> dict[str, Sets]:
        """The sets of all weights at once, for methods that move budgets between layers (`is_global`)."""
        return {name: self.choose(moment) for name, moment in moments.items()}

    def exploration_end(self) -> int | None:
        """Step from which B∖A is frozen, or None for never."""
        return None

    def exploration_factor(self, step: int) -> float:
        """What the update of B∖A in step number `step` (1 is the first) is multiplied by, until that end."""
        return 1.0

    # ---- what it needs --------------------------------------------------------------------------------

    @property
    def refreshes(self) -> bool:
        """Whether sets are ever chosen anew, so that somebody has to drive the schedule."""
        return True

    @property
    def has_penalty(self) -> bool:
        """Whether `Handle.penalty` is its regulariser; others have plain weight decay."""
        return False

    def penalty_factor(self, step: int) -> float:
        """What that penalty is multiplied by in step number `step` (1 is the first)."""
        return 1.0

    @property
    def applies_penalty(self) -> bool:
        """Whether it applies that penalty itself after every step, so that the loss need not have it."""
        return False

    @property
    def fetches(self) -> bool:
        """Whether elements of C may enter B later with a value of their own, so that C has to be known."""
        return True

    @property
    def resizes(self) -> bool:
        """Whether |A| and |B| of a weight change."""
        return False

    @property
    def plans_sizes(self) -> bool:
        """Whether |A| and |B| follow from the step alone (`sizes`), so that all ranks know them."""
        return not self.resizes

    def sizes(self, step: int, counts: Counts) -> Counts:
        """|A| and |B| once `step` steps have been taken, of a weight that was given the sizes `counts`."""
        return counts

    def turns(self) -> tuple[int, ...]:
        """Steps taken when sizes may be at their largest: 0, and those after which they may grow."""
        return (0,)

    @property
    def learns_sparsity(self) -> bool:
        """Whether how sparse a weight becomes is learned, so that nobody can foresee it."""
        return False

    @property
    def is_global(self) -> bool:
        """Whether the sets of a layer depend on other layers: they are chosen together."""
        return False

    def wants_gradient(self, step: int) -> bool:
        """Whether the dense weight gradient of step number `step` is needed."""
        return False

    @property
    def companion_type(self) -> type[Companion] | None:
        """What kind of thing is kept beside a weight."""
        return None

    def companion(self, moment: Moment, sets: Sets, dtype: torch.dtype) -> Companion | None:
        """What is kept beside a weight that is being made with these sets."""
        return None

    @property
    def acts_after_steps(self) -> bool:
        """Whether `after_step` is to be called."""
        return type(self).after_step is not Method.after_step

    def after_step(self, weight: SparseWeight, lr: float) -> None:  # noqa: B027  (nothing is a fine default)
        """Called after every optimizer step, before the sets are chosen; `lr` is the step's learning rate."""

    # ---- accounting -----------------------------------------------------------------------------------

    def densities(self, step: int, counts: Counts) -> tuple[float, float]:
        """What step number `step` (1 is the first) costs a weight that was given the sizes `counts`.

        Returns:
            The densities at which its products are computed, for accounting: of the forward pass and the
            input gradient, and of the weight gradient.
        """
        present = self.sizes(step - 1, counts)
        return present.forward_density, present.backward_density

    def last_step(self) -> int | None:
        """The step at which a schedule ends that a run must not fall short of, or None."""
        return None

    def check_run(self, steps: int) -> None:
        """Raises ValueError if a run of that many steps ends before the method's schedule does."""
        check_steps("`steps`", steps, at_least=1)
        end = self.last_step()
        if end is not None and end > steps:
            raise ValueError(
                f"the schedule of {type(self).__name__} ends at step {end}, beyond the run of {steps} steps: "
                "it would not be gone through; end it earlier, or train for longer"
            )


def grows_by_gradient(method: Method) -> bool:
    """Whether the method asks for dense gradients at any step."""
    return type(method).wants_gradient is not Method.wants_gradient


@dataclass(frozen=True)
class OneSparsity(Method):
    """A base for methods with B = A."""

    backward_sparsity: float = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "backward_sparsity", self.forward_sparsity)
        super().__post_init__()


class FixedSets(Method):
    """A base for methods that choose once: nothing of C is kept."""

    def is_due(self, step: int) -> bool:
        return False

    @property
    def refreshes(self) -> bool:
        return False

    @property
    def fetches(self) -> bool:
        return False
