"""`SparseWeight`: the state of one sparse weight. All that a layer, a method or a checkpoint needs."""

from __future__ import annotations

import copy
import math
import weakref
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from topkast.core.floor import Floor, Grid
from topkast.core.gradient import Tape, rows_of
from topkast.core.loading import LATER, check_state
from topkast.core.not_a_tensor import NotATensor
from topkast.core.reservoir import Reservoir, Theta
from topkast.core.select import Within, favoured
from topkast.core.sets import Counts, Sets
from topkast.core.slots import Companion, Copies, nothing_noted, pack, resize_, unpack
from topkast.kernels.auto import NUM_SIZES, Auto
from topkast.kernels.engine import Engine
from topkast.kernels.engines import ENGINES
from topkast.kernels.ops import register
from topkast.kernels.plan import ActiveChange, Plan
from topkast.kernels.positions import flip_, index_dtype
from topkast.kernels.product import Product


class SparseWeight(NotATensor):
    """For every element of B its position and value; C is known to the reservoir.

    `values` is the one Parameter: its object never changes, so an optimizer, DDP or an average may hold on to
    it, and nor does its length, unless the method moves budgets (`is_resizable`). What a *slot* of it means
    does change at a refresh.

    Attributes:
        values: One number per element of B.
        indices: Positions of B in the flattened dense weight, strictly increasing.
        active: Which of B is in A. Exactly ``counts.forward`` are true.
        dims: The dense shape as a buffer, so that a checkpoint of another shape is noticed.
        step: Optimizer steps taken, so that the schedule survives a restart.
        changed: How many elements entered or left A at the last refresh or exchange.
        exchanged: How many elements entered B at the last exchange.
        early: How many exchanges came before their time, so that A stayed the Top-K of θ.
        noted: Whether A has changed since the last exchange, and A as it was then, a bit for each of B.
        key: Where this weight's random choices come from.
        choices: What engine "auto" has decided, by size of input; see `kernels.auto`.
        reservoir: What is known of C.
        name: Qualified name of the layer, for messages.
        engine: Name of the engine that computes the products.
        explore_until: Step from which B∖A is frozen, or None for never.
        target: The sizes that the distribution gave it; `counts` are those of the present sets.
        is_resizable: Whether the method changes |A| and |B|.
        companion: What the method keeps beside it, or None.
        grid: Which outputs and inputs its elements join.
        tape: What the dense gradient of this step can be computed from, if a method wants it.
        wants_gradient: Says whether the method wants the dense gradient of a step; None for no step.
        number: What stands for this object in a compiled graph; see `kernels.ops`.
        copies: Its living copies, some of which may be averages by slot.
    """

    companion: Companion | None
    values: nn.Parameter
    indices: Tensor
    active: Tensor
    dims: Tensor
    step: Tensor
    changed: Tensor
    exchanged: Tensor
    early: Tensor
    noted: Tensor
    key: Tensor
    choices: Tensor

    def __init__(
        self,
        shape: tuple[int, ...],
        values: Tensor,
        sets: Sets,
        reservoir: Reservoir,
        *,
        name: str,
        engine: str = "masked",
        key: int = 0,
        explore_until: int | None = None,
        requires_grad: bool = True,
        target: Counts | None = None,
        is_resizable: bool = False,
        companion: Companion | None = None,
        grid: Grid | None = None,
    ) -> None:
        super().__init__()
        self.shape = torch.Size(shape)
        self.name = name
        self.engine = engine
        self.explore_until = explore_until
        self.counts = Counts(self.shape.numel(), int(sets.active.sum()), sets.indices.numel())
        self.target = target or self.counts
        self.is_resizable = is_resizable
        self.grid = grid or Grid.of(self.shape)
        device = values.device
        self.values = nn.Parameter(values.detach(), requires_grad=requires_grad)
        indices = sets.indices.to(index_dtype(self.counts.numel))
        self.register_buffer("indices", indices)
        self.register_buffer("active", sets.active.clone())
        self.register_buffer("dims", torch.tensor(self.shape, dtype=torch.int64, device=device))
        self.register_buffer("step", torch.zeros((), dtype=torch.int64, device=device))
        for name in ("changed", "exchanged", "early"):
            self.register_buffer(name, torch.zeros((), dtype=torch.int64, device=device))
        self.register_buffer("noted", nothing_noted(indices))
        self.register_buffer("key", torch.tensor(key, dtype=torch.int64, device=device))
        self.register_buffer("choices", torch.zeros(NUM_SIZES, dtype=torch.int8, device="cpu"))
        self.reservoir = reservoir
        self.companion = companion
        self._forget()

    def _forget(self) -> None:
        """Drops everything that is derived from the state or belongs to this object alone."""
        self._plan: Plan | None = None
        self._chooser: Auto | None = None
        self._within = Within()
        self._bound: float | None = None
        self.tape: Tape | None = None
        self.wants_gradient: Callable[[int], bool] | None = None
        self.number = register(self)
        self._step_read: tuple[int, int] | None = None
        self._driver: weakref.ref[Any] | None = None
        self.copies = Copies(self)

    # ---- what it looks like -------------------------------------------------------------------

    def extra_repr(self) -> str:
        c = self.counts
        return f"shape={tuple(self.shape)}, forward={c.forward}, backward={c.backward}, of={c.numel}"

    @property
    def steps(self) -> int:
        """`step` as a number; from a device only when the buffer was written, since reading it waits."""
        if self.step.device.type == "cpu":
            return int(self.step)
        version = self.step._version
        if self._step_read is None or self._step_read[0] != version:
            self._step_read = (version, int(self.step))
        return self._step_read[1]

    @property
    def driver(self) -> Any:
        """The attachment of the optimizer that trains it, or None; see `convert.attach`."""
        return None if self._driver is None else self._driver()

    @driver.setter
    def driver(self, attachment: Any) -> None:
        self._driver = None if attachment is None else weakref.ref(attachment)

    @property
    def explores(self) -> bool:
        """Whether B∖A is being updated (it no longer is from step `explore_until` on)."""
        return self.explore_until is None or self.steps < self.explore_until

    @property
    def plan(self) -> Plan:
        """The Plan for the present sets. Built anew, and checked, whenever these have changed."""
        explores = self.explores
        if self._plan is None or not self._plan.describes(self.indices, self.active, explores=explores):
            self._plan = None  # its memory can be used for the next one
            self._plan = self._build_plan()
        return self._plan

    def forget_bound(self) -> None:
        """C is another."""
        self._bound = None

    def forget_plan(self) -> None:
        """Makes room for what comes next, when the sets are about to change."""
        self._plan = None

    def _build_plan(self) -> Plan:
        try:
            return Plan(tuple(self.shape), self.indices, self.active, explores=self.explores)
        except ValueError as error:
            raise ValueError(f"layer {self.name!r}: {error}") from None

    def engine_impl(self) -> Engine | Auto:
        """What to compute with: `engine`, unless the weight has been moved to where that cannot run."""
        if not self.values.is_cpu and self._is_off_cpu():
            return ENGINES["masked"]
        return self._auto() if self.engine == "auto" else ENGINES[self.engine]

    def _auto(self) -> Auto:
        choices = self.choices
        if self._chooser is None or self._chooser.choices is not choices:
            self._chooser = Auto(choices)
        return self._chooser

    def _is_off_cpu(self) -> bool:
        """Whether the weight is on a device and its engine is for the CPU, between whose "auto" decides."""
        is_for_cpu = self.engine == "auto" or ENGINES[self.engine].is_for_cpu
        return is_for_cpu and self.device.type != "cpu"

    def describe_engine(self) -> str:
        """For tables: `engine`, and what "auto" has decided."""
        if self._is_off_cpu():
            return f"{self.engine}: masked on {self.device.type}"
        return self._auto().describe() if self.engine == "auto" else self.engine

    # ---- dense views, for inspection of small layers -------------------------------------------

    @torch.no_grad()
    def theta(self) -> Tensor:
        """θ: every element, dense. For inspection."""
        return self.reservoir.dense(self.indices, self.values).view(self.shape)

    @torch.no_grad()
    def alpha(self) -> Tensor:
        """α: θ on A, zero elsewhere, dense. For inspection and export."""
        dense = self.values.new_zeros(self.numel())
        dense[self.indices[self.active]] = self.evaluated()[self.active]
        return dense.view(self.shape)

    def forward_mask(self) -> Tensor:
        """A as a dense bool tensor."""
        return self._mask(self.indices[self.active])

    def backward_mask(self) -> Tensor:
        """B as a dense bool tensor (A from step `explore_until` on)."""
        return self._mask(self.indices[self.updated()])

    def _mask(self, positions: Tensor) -> Tensor:
        dense = torch.zeros(self.numel(), dtype=torch.bool, device=self.device)
        dense[positions] = True
        return dense.view(self.shape)

    # ---- sets -----------------------------------------------------------------------------------

    def full_theta(self, advantage: float = 1.0) -> Theta:
        """θ for a method to choose from, with what is in A multiplied by `advantage`."""
        return self.reservoir.theta(self.indices, favoured(self.values.detach(), self.active, advantage))

    def updated(self) -> Tensor:
        """Which slots are in the backward set: all, or those of A once exploration has ended. A copy."""
        return torch.ones_like(self.active) if self.explores else self.active.clone()

    def used(self) -> Tensor:
        """What the products compute with, by slot: `values`, unless the method makes something of them."""
        return self.values if self.companion is None else self.companion.used(self.values)

    def evaluated(self) -> Tensor:
        """The same in evaluation mode, whatever the mode is."""
        return self.values if self.companion is None else self.companion.evaluated(self.values)

    @torch.no_grad()
    def take(self, values: Tensor, sets: Sets) -> None:
        """Takes new sets, with these values on B. Whatever else is kept by slot is the caller's."""
        if values.numel() == self.values.numel():
            self.values.copy_(values)
            self.indices.copy_(sets.indices)
            self.active.copy_(sets.active)
            self.noted[0] = 0
        else:
            resize_(self.values, values)
            self.indices = sets.indices.to(self.indices)
            self.active = sets.active.to(self.active)
            self.noted = nothing_noted(self.indices)
        self._count()

    # ---- A within B ---------------------------------------------------------------------------

    def choose_active(
        self, advantage: float = 1.0, floor: Floor | None = None, bound: float = -math.inf
    ) -> tuple[Tensor, float] | None:
        """Slots of B whose flag must change for A to be the largest of B, and the least magnitude in A then.

        Magnitudes of what is in A now are multiplied by `advantage`. None if a value is not finite. With a
        floor: the least magnitude that it does not hold up, or, if above `bound`, a lower bound of that.
        """
        values = self.values.detach()
        choice = self._within.choose(values, self.active, self.counts.forward, advantage)
        if choice is None or floor is None:
            return choice
        compared = favoured(values, self.active, advantage)
        return floor.repair(compared, self.indices, self.active, *choice, bound)

    def bound(self) -> float:
        """The largest magnitude in C, -inf without C. Found once after each exchange: C does not move."""
        if self._bound is None:
            has_c = self.counts.backward < self.counts.numel
            self._bound = self.reservoir.largest() if has_c else -math.inf
        return self._bound

    @torch.no_grad()
    def flip(self, slots: Tensor) -> None:
        """Takes elements of B into A or out of it: those at `slots`, increasing, get the other flag.

        No value moves, and nothing of θ, the reservoir or an optimizer is looked at.
        """
        self.changed.fill_(slots.numel())
        if slots.numel() == 0:
            return
        if not self.is_noted:  # the first change since an exchange
            self.noted[1:] = pack(self.active)
            self.noted[0] = 1
        # Before the flags change: a Plan that describes others already is not to be followed.
        plan = self._plan if self._plan is not None and self._plan.is_unwritten() else None
        positions, enters = flip_(self.active, self.indices, slots)
        self._plan = None if plan is None else plan.after(ActiveChange(slots, positions, enters))

    def noted_active(self) -> Tensor:
        """Which of B were in A at the last exchange: what the reservoir knows of."""
        return unpack(self.noted[1:], self.active) if self.is_noted else self.active

    @property
    def is_noted(self) -> bool:
        """Whether A has changed since the last exchange."""
        return bool(self.noted[0])

    def _count(self) -> None:
        """Reads the sizes off the sets, where they may have changed."""
        if self.is_resizable:
            self.counts = Counts(self.numel(), int(self.active.sum()), self.indices.numel())

    # ---- the dense gradient, for methods that grow by it ------------------------------------------

    def record(self, product: Product, x: Tensor, grad: Tensor) -> None:
        """Notes what the dense gradient can be computed from; see `kernels.ops`."""
        if self.tape is not None:
            self.tape.add(rows_of(product, x, grad, tuple(self.shape)))

    def prepare_tape(self) -> None:
        """Makes sure, in a forward pass, that there is a tape if one is wanted, with this step's on it."""
        if self.wants_gradient is None or not self.wants_gradient(self.steps + 1):
            return
        if self.tape is None:
            self.tape = Tape(tuple(self.shape))
        is_recomputing = torch._C._current_graph_task_id() != -1  # activations, within the backward pass
        if not is_recomputing and (self.values.grad is None or not self.values.grad.any()):
            # Gradients were set to zero: what came before belongs to a step that was not taken (a GradScaler
            # skipped it). At the forward pass, since all of a backward pass may precede the first gradient.
            self.tape.clear()

    # ---- copies ---------------------------------------------------------------------------------

    def __getstate__(self) -> dict[str, Any]:
        derived = ("_plan", "_chooser", "_within", "_bound", "tape", "wants_gradient", "number", "_step_read")
        return {k: v for k, v in self.__dict__.items() if k not in (*derived, "_driver", "copies")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__({"grid": Grid.of(state["shape"]), **state})  # older pickles have none
        for name in LATER:  # version 0.1 had nothing of this
            nothing = nothing_noted(self.indices) if name == "noted" else torch.zeros_like(self.changed)
            self._buffers.setdefault(name, nothing)
        self._forget()

    def __deepcopy__(self, memo: dict[int, Any]) -> SparseWeight:
        twin = self.__class__.__new__(self.__class__)
        memo[id(self)] = twin
        twin.__setstate__(copy.deepcopy(self.__getstate__(), memo))
        self.copies.add(twin)
        return twin

    def _apply(self, fn: Callable[..., Any], recurse: bool = True) -> SparseWeight:
        was_written = self.copies.was_written()
        super()._apply(fn, recurse)
        if not was_written:
            self.copies.mark()
        self._plan = None
        return self

    # ---- loading --------------------------------------------------------------------------------

    def _load_from_state_dict(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, state_dict: Any, prefix: str, local_metadata: Any, *rest: Any
    ) -> None:
        # Values are always copied into the Parameter there is: an optimizer may hold it already.
        local_metadata = {**local_metadata, "assign_to_params_buffers": False}
        check_state(self, state_dict, prefix)
        self._fit(state_dict, prefix)
        self._bound = None
        if prefix + "step" in state_dict:  # what states of version 0.1 do not have
            for name in LATER:
                state_dict.setdefault(prefix + name, torch.zeros_like(getattr(self, name)))
        super()._load_from_state_dict(state_dict, prefix, local_metadata, *rest)
        self._count()
        self.copies.mark()

    def _fit(self, state_dict: Mapping[str, Any], prefix: str) -> None:
        """Takes on the lengths of a state that is about to be loaded, where they may change."""
        if self.companion is not None:
            self.companion.fit(state_dict, prefix + "companion.")
        theirs = state_dict.get(prefix + "values")
        if theirs is None or theirs.numel() == self.values.numel():
            return
        num_slots = theirs.numel()
        resize_(self.values, self.values.new_zeros(num_slots))
        self.indices = self.indices.new_zeros(num_slots)
        self.active = self.active.new_zeros(num_slots)
        self.noted = nothing_noted(self.indices)
