"""What an optimizer starts its state at, found by asking it.

An element that enters B needs the state that the optimizer itself would give a new weight. That is zero for
moments, but not always: Adagrad starts its sum at a setting, Rprop its step sizes at the learning rate, and
schedule-free's z, MADGRAD's x0 or Lookahead's slow weights start as a copy of the weight. No list of names
would be complete, so a *trial* tells: a twin of the optimizer, with empty state, takes one step on five
numbers with zero gradient, and what its state holds afterwards is what it starts at.
"""

from __future__ import annotations

import types
import warnings
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

# The weights of the trial: no two alike, none that an optimizer may use as a constant.
_VALUES = (0.8125, -0.59375, 0.34375, -1.40625, 0.21875)
# By what the learning rate is multiplied, so that a state that starts there is told from a constant.
_ODD = 1.0009765625
# A decay that the trial could not switch off moves the copy of a weight by less than this share.
_NEAR = 0.05
# What is added in a step against division by zero; no start of its own.
_EPSILON = 1e-7
# Some optimizers begin to keep a tensor only after a few steps.
_MOST_STEPS = 12


@dataclass(frozen=True)
class Start:
    """What one state tensor starts at: the weight itself, its group's learning rate, or a constant."""

    kind: Literal["value", "lr", "constant"]
    constant: float = 0.0

    def of(self, values: Tensor, lr: Any) -> float | Tensor:
        """For elements with these values, in a group with this learning rate."""
        if self.kind == "value":
            return values
        return float(lr) if self.kind == "lr" else self.constant


class TrialFailed(RuntimeError):
    """The twin could not take a step."""


def find_starts(
    optimizers: Sequence[Any], values: Tensor, wanted: Iterable[tuple[int, str]] = ()
) -> dict[tuple[int, str], Start]:
    """Where the state of `values` starts.

    Args:
        optimizers: The one that holds `values` last, before it those that wrap it, the outermost first.
        values: Decides group and dtype.
        wanted: Names to look for over several steps, each with the place of its optimizer.

    Returns:
        By the optimizer's place and the tensor's name. What could not be told is not in it.

    Raises:
        TrialFailed: The optimizer cannot be copied, or the copy cannot take a step.
    """
    # On the CPU nobody waits for a device. Some optimizers insist on one (`capturable`), and get it.
    devices = dict.fromkeys((torch.device("cpu"), values.device))
    reason = ""
    for device in devices:
        found: dict[tuple[int, str], Start | None] = {}
        try:
            _run_trial(optimizers, values, device, set(wanted), found)
        except Exception as error:  # whatever foreign code raises: the caller decides what it means
            reason = f"{type(error).__name__}: {error}"
        if found:
            return {key: start for key, start in found.items() if start is not None}
    if reason:
        raise TrialFailed(reason)
    return {}


def _run_trial(
    optimizers: Sequence[Any],
    values: Tensor,
    device: torch.device,
    missing: set[tuple[int, str]],
    found: dict[tuple[int, str], Start | None],
) -> None:
    """Steps until all that is missing was found; what is found before an error stays so."""
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trial = _Trial(optimizers, values, device)
        for _ in range(_MOST_STEPS):
            trial.step()
            for key, entry in trial.state():
                found.setdefault(key, classify(entry, trial.weights, trial.parameter, lr=trial.lr))
            if missing <= found.keys():
                break


class _Trial:
    """Twins of the optimizers, on one parameter of five numbers."""

    def __init__(self, optimizers: Sequence[Any], values: Tensor, device: torch.device) -> None:
        self.weights = torch.tensor(_VALUES, dtype=values.dtype, device=device)
        self.parameter = nn.Parameter(self.weights.clone())
        innermost = optimizers[-1]
        group = next(g for g in innermost.param_groups if any(p is values for p in g["params"]))
        memo: dict[int, Any] = {id(values): self.parameter}
        copied = {key: _copy(entry, memo) for key, entry in group.items() if key != "params"}
        self.group = {"params": [self.parameter], **copied}
        self.lr = self._prepare_group()
        memo[id(group)] = self.group
        self.twins: list[Any] = []
        memo[id(None)] = None
        for optimizer in optimizers:
            twin = object.__new__(type(optimizer))
            memo[id(optimizer)] = twin
            memo.setdefault(id(getattr(optimizer, "state", None)), _fresh_state(optimizer, memo))
            memo.setdefault(id(getattr(optimizer, "param_groups", None)), [self.group])
            self.twins.append(twin)
        for optimizer, twin in zip(optimizers, self.twins, strict=True):
            twin.__dict__.update(_attributes(optimizer, memo))

    def _prepare_group(self) -> float | None:
        """Switches the decay off, and makes the learning rate a number like no other."""
        if "weight_decay" in self.group:
            self.group["weight_decay"] = 0.0
        lr = self.group.get("lr")
        if not isinstance(lr, float | int | Tensor) or float(lr) == 0:
            return None
        self.group["lr"] = lr * _ODD
        return float(lr) * _ODD

    def step(self) -> None:
        outermost = self.twins[0]
        self.parameter.grad = torch.zeros_like(self.parameter)
        step: Callable[..., Any] = type(outermost).step
        step = getattr(step, "__wrapped__", step)  # without the hooks that somebody registered for all
        try:
            step(outermost)
        except Exception:  # some want a closure, and say so in their own ways
            step(outermost, self._closure)

    def _closure(self) -> Tensor:
        self.parameter.grad = torch.zeros_like(self.parameter)
        return torch.zeros((), dtype=self.parameter.dtype, device=self.parameter.device)

    def state(self) -> Iterable[tuple[tuple[int, str], Tensor]]:
        for place, twin in enumerate(self.twins):
            for name, entry in getattr(twin, "state", {}).get(self.parameter, {}).items():
                if isinstance(entry, Tensor) and entry.shape == self.parameter.shape:
                    yield (place, name), entry.detach()


def classify(entry: Tensor, *weights: Tensor, lr: float | None = None) -> Start | None:
    """What a tensor starts at that was made for these weights just now, or None for nothing that is known.

    An average of the weight that starts at zero, to be corrected by the number of steps, is such a thing: for
    an element that enters late the correction would be wrong.
    """
    numbers = entry.detach().to("cpu", torch.float64)
    if not torch.isfinite(numbers).all():
        return None
    first = float(numbers[0])
    if (numbers == first).all():
        is_lr = lr is not None and abs(first - lr) <= 1e-6 * lr
        return Start("lr") if is_lr else Start("constant", first if abs(first) > _EPSILON else 0.0)
    for weight in weights:
        values = weight.detach().to("cpu", torch.float64)
        if ((numbers - values).abs() <= _NEAR * values.abs()).all():
            return Start("value")
    return None


# ---- a twin, without copying what may be large -----------------------------------------------------------

_HOOKS = ("_optimizer_step_pre_hooks", "_optimizer_step_post_hooks")
# Larger tensors belong to a model or to the state of its parameters: the trial has no use for them.
_LARGEST_TENSOR = 4096


def _fresh_state(optimizer: Any, memo: dict[int, Any]) -> Any:
    """A state without that of any parameter; some keep counters of their own in it."""
    state: defaultdict[Any, Any] = defaultdict(dict)
    for key, entry in getattr(optimizer, "state", {}).items():
        if not isinstance(key, Tensor):
            state[key] = _copy(entry, memo)
    return state


def _attributes(optimizer: Any, memo: dict[int, Any]) -> dict[str, Any]:
    """The twin's attributes. A `step` that a scheduler has put there would call the original."""
    return {
        name: OrderedDict() if name in _HOOKS else _copy(attribute, memo)
        for name, attribute in getattr(optimizer, "__dict__", {}).items()
        if name != "step"
    }


def _copy(thing: Any, memo: dict[int, Any]) -> Any:
    """Plain data as a copy, what has a twin as that, anything else as it is."""
    if id(thing) in memo:
        return memo[id(thing)]
    if isinstance(thing, Tensor):
        return thing.detach().clone() if thing.numel() <= _LARGEST_TENSOR else thing
    if isinstance(thing, types.MethodType) and id(thing.__self__) in memo:
        return types.MethodType(thing.__func__, memo[id(thing.__self__)])
    if isinstance(thing, dict):
        twin = thing.copy()
        twin.clear()
        twin.update({_copy(key, memo): _copy(entry, memo) for key, entry in thing.items()})
        return twin
    if isinstance(thing, list | set | deque):
        return type(thing)(_copy(entry, memo) for entry in thing)
    if type(thing) is tuple:
        return tuple(_copy(entry, memo) for entry in thing)
    return thing
