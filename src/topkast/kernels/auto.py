"""Engine `auto`: for each layer and size of input the engine that was measured to be the fastest.

The first training pass with an input larger than all before decides: it times the forward and backward pass
of every engine on that very input. A buffer of the weight remembers the choice. So a checkpoint carries it,
and a resumed run computes with the same engines to the last bit. Smaller inputs use what was decided for the
next larger size: the last, short batch of an epoch decides nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from topkast.kernels.engine import ConvGeometry, Engine
from topkast.kernels.engines import ENGINES
from topkast.kernels.plan import Plan
from topkast.kernels.product import Product

# What the numbers in `choices` stand for.
NAMES = ("undecided", *sorted(ENGINES, key=lambda name: ENGINES[name].code))
# Inputs are told apart by the number of bits in their number of elements.
NUM_SIZES = 64

# `masked` makes a dense weight. Above this it is not even tried: being sparse is then what the user came for.
_DENSE_LIMIT = 2**24
# Timed passes, after one to warm up and one to sort out the hopeless; the shortest counts.
_PASSES = 3
# An engine whose first timed pass takes this many times the best is out at once.
_HOPELESS = 3.0
# `native` is preferred if it is this close to the best: it needs the least memory.
_MARGIN = 1.05
# Before anything was measured: where `native` wins on two cores with AVX2.
_RULE_NUMEL = 128 * 128
_RULE_DENSITY = 0.5


@dataclass(frozen=True)
class Case:
    """All that the speed of a layer depends on. Equal layers are measured once per process."""

    shape: tuple[int, ...]
    num_active: int
    num_updated: int
    product: Product
    size: int
    dtype: torch.dtype
    num_threads: int


_measured: dict[Case, str] = {}


def forget_measurements() -> None:
    """Lets this process measure again; what weights have in `choices` stays."""
    _measured.clear()


class Auto:
    """Picks an engine for each call.

    Args:
        choices: ``(NUM_SIZES,)`` int8, the weight's buffer: for each size of input an index into `NAMES`.
    """

    def __init__(self, choices: Tensor) -> None:
        self.choices = choices
        self._picked: dict[tuple[Product, int], Engine] = {}
        self._version = -1

    def pick(self, product: Product, plan: Plan, values: Tensor, x: Tensor, *, is_training: bool) -> Engine:
        """The engine for a product with a flat input x. Only a training pass measures."""
        size = min(x.numel().bit_length(), NUM_SIZES - 1)
        version = 0 if self.choices.is_inference() else self.choices._version
        if version != self._version:  # somebody has loaded or decided something
            self._picked, self._version = {}, version
        engine = self._picked.get((product, size))
        return self._look_up(product, plan, values, x, size, is_training) if engine is None else engine

    def _look_up(
        self, product: Product, plan: Plan, values: Tensor, x: Tensor, size: int, is_training: bool
    ) -> Engine:
        usable = usable_engines(product.kind, product.geometry, x.device)
        if product.kind == "embedding":  # one that touches the rows that are looked up and no others
            engine = self._picked[product, size] = ENGINES["native" if "native" in usable else "csr"]
            return engine
        table = self.choices.tolist()
        name = next((NAMES[code] for code in table[size:] if code), None)
        if name is None and is_training and _can_measure(x):
            name = _winner(usable, plan, values.detach(), x.detach(), product, size)
            with torch.no_grad():
                self.choices[size] = NAMES.index(name)
        if name is None:  # nothing is decided for such a size yet: not to be remembered
            name = next((NAMES[code] for code in reversed(table) if code), None)
            return ENGINES[name] if name in usable else _by_rule(usable, plan)
        engine = ENGINES[name] if name in usable else _by_rule(usable, plan)
        self._picked[product, size] = engine
        return engine

    def describe(self) -> str:
        """For tables: what was decided for the largest input so far."""
        name = next((NAMES[code] for code in reversed(self.choices.tolist()) if code), None)
        return "auto" if name is None else f"auto: {name}"


def usable_engines(kind: str, geometry: ConvGeometry | None, device: torch.device) -> list[str]:
    """Names of the engines that can do such a layer here, the preferred first."""
    return [
        name
        for name in sorted(ENGINES, key=lambda name: ENGINES[name].preference)
        if ENGINES[name].unavailable() is None and ENGINES[name].refusal(kind, geometry, device.type) is None
    ]


def _can_measure(x: Tensor) -> bool:
    """Only on the CPU, and on real numbers."""
    return x.device.type == "cpu" and x.numel() > 0 and type(x) in (Tensor, torch.nn.Parameter)


def _by_rule(usable: list[str], plan: Plan) -> Engine:
    is_worth_it = plan.numel >= _RULE_NUMEL and plan.num_slots <= _RULE_DENSITY * plan.numel
    if "native" in usable and (is_worth_it or plan.numel > _DENSE_LIMIT):
        return ENGINES["native"]
    return ENGINES["masked"]


def _winner(usable: list[str], plan: Plan, values: Tensor, x: Tensor, product: Product, size: int) -> str:
    case = Case(
        plan.shape,
        plan.num_active,
        plan.num_updated,
        product,
        size,
        x.dtype,
        torch.get_num_threads(),
    )
    if case not in _measured:
        candidates = [n for n in usable if n != "masked" or plan.numel <= _DENSE_LIMIT]
        passes = {n: _training_pass(ENGINES[n], plan, values, x, product) for n in candidates}
        _measured[case] = fastest(passes)
        plan.forget_derived()  # what the losers made of it would stay as long as the sets do
    return _measured[case]


def _training_pass(
    engine: Engine, plan: Plan, values: Tensor, x: Tensor, product: Product
) -> Callable[[], None]:
    """Forward and backward pass of one layer; the output serves as its own gradient."""

    def both() -> None:
        y = product.compute(engine, plan, values, x, None)
        product.grads(engine, plan, values, x, y, (True, True, False))

    return both


def fastest(passes: dict[str, Callable[[], None]], clock: Callable[[], float] = time.perf_counter) -> str:
    """The name of the pass that takes the least time; the first of them where it is as good as the best."""

    def timed(name: str) -> float:
        started = clock()
        passes[name]()
        return clock() - started

    with torch.no_grad():
        for warm_up in passes.values():
            warm_up()
        first = {name: timed(name) for name in passes}
        remaining = [name for name in passes if first[name] <= _HOPELESS * min(first.values())]
        if len(remaining) == 1:
            return remaining[0]
        best = dict.fromkeys(remaining, float("inf"))
        for _ in range(_PASSES):
            for name in remaining:
                best[name] = min(best[name], timed(name))
    preferred = remaining[0]
    return preferred if best[preferred] <= _MARGIN * min(best.values()) else min(best, key=best.__getitem__)
