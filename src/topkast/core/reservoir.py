"""The reservoir: what is known of C, the elements outside B.

C is never touched between refreshes. At a refresh, elements that leave B are written back and elements
that enter B are fetched.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import Protocol

import torch
from torch import Tensor, nn

from topkast.core.loading import all_finite
from topkast.core.select import gather, locate, top_k


class Theta(Protocol):
    """θ as a method sees it when it chooses sets: ask for its largest elements or for given ones."""

    numel: int

    def top(self, k: int) -> Tensor:
        """Positions of the k largest |θ|, ties to the smaller position, increasing."""
        ...

    def at(self, positions: Tensor) -> Tensor:
        """θ at the given positions."""
        ...


class DenseTheta:
    """θ held as one flat tensor."""

    def __init__(self, flat: Tensor) -> None:
        self.flat = flat
        self.numel = flat.numel()

    def top(self, k: int) -> Tensor:
        return top_k(self.flat, k)

    def at(self, positions: Tensor) -> Tensor:
        return gather(self.flat, positions)


class Reservoir(nn.Module):
    """What every kind of reservoir can do. `indices` and `values` always describe the present B."""

    kind: str

    @abstractmethod
    def theta(self, indices: Tensor, values: Tensor) -> Theta:
        """All of θ, for choosing sets."""

    @abstractmethod
    def dense(self, indices: Tensor, values: Tensor) -> Tensor:
        """All of θ as one flat tensor, for inspection."""

    @abstractmethod
    def exchange(self, leaving: Tensor, leaving_values: Tensor, entering: Tensor) -> Tensor:
        """Takes the leavers back and hands out the entrants' values."""

    @abstractmethod
    def largest(self) -> float:
        """The largest magnitude in C, which must not be empty. Only an exchange changes it."""

    @abstractmethod
    def record(self, entered_a: Tensor, left_a: Tensor) -> None:
        """Notes what has entered and left A from one exchange to the next, by increasing positions."""

    @abstractmethod
    def used(self) -> tuple[float, float]:
        """Shares of the initial C that have been in B, and in A, at some time."""

    def problem(self, state: Mapping[str, Tensor], indices: Tensor) -> str | None:
        """Says why a state with B at `indices` cannot be loaded, or None. `state` has all buffers by name."""
        for name, mine in self.named_buffers():
            if state[name].shape != mine.shape:
                return f"reservoir.{name} must have shape {tuple(mine.shape)}, got {tuple(state[name].shape)}"
        return None


# What `StoredReservoir.history` says of an element.
_NEVER, _INITIAL, _BEEN_IN_B, _BEEN_IN_A = 0, 1, 2, 3


class StoredReservoir(Reservoir):
    """C kept as given: exact for any θ⁰, at one number and one byte per element of the dense weight.

    Buffers:
        rest: θ on C, zero on B (those values live in the weight), flat.
        history: per element, whether it started in B, or since entered B, or A.
    """

    kind = "stored"
    rest: Tensor
    history: Tensor

    def __init__(self, theta: Tensor, indices: Tensor) -> None:
        super().__init__()
        rest = theta.detach().reshape(-1).clone()
        history = torch.full(rest.shape, _NEVER, dtype=torch.uint8, device=rest.device)
        rest[indices] = 0
        history[indices] = _INITIAL
        self.register_buffer("rest", rest)
        self.register_buffer("history", history)

    def theta(self, indices: Tensor, values: Tensor) -> DenseTheta:
        return DenseTheta(self.dense(indices, values))

    def dense(self, indices: Tensor, values: Tensor) -> Tensor:
        return self.rest.index_copy(0, indices.long(), values)

    def exchange(self, leaving: Tensor, leaving_values: Tensor, entering: Tensor) -> Tensor:
        self._has_been(entering, _BEEN_IN_B)
        entrants = self.rest.index_select(0, entering)
        self.rest[entering] = 0
        self.rest[leaving.long()] = leaving_values
        return entrants

    def largest(self) -> float:
        low, high = torch.aminmax(self.rest)  # zero on B, which is no larger than what C has
        return float(torch.maximum(-low, high))

    def problem(self, state: Mapping[str, Tensor], indices: Tensor) -> str | None:
        wrong = super().problem(state, indices)
        if wrong is None and not all_finite(state["rest"], self.rest.dtype):
            # Else they would enter B, and the products, at some later refresh.
            return f"reservoir.rest has numbers that are not finite in {self.rest.dtype}"
        return wrong

    def record(self, entered_a: Tensor, left_a: Tensor) -> None:
        self._has_been(entered_a, _BEEN_IN_A)

    def _has_been(self, positions: Tensor, code: int) -> None:
        # A code only ever grows, and what started in B is not part of the initial C.
        now = self.history[positions]
        self.history[positions] = torch.where(now == _INITIAL, now, now.clamp(min=code))

    def take_history(self, initial: Tensor, been_in_b: Tensor, been_in_a: Tensor) -> None:
        """Sets the history from one bool per element each: in the first B; in B, and in A, at some time."""
        self.history.fill_(_NEVER)
        for flags, code in ((been_in_b, _BEEN_IN_B), (been_in_a, _BEEN_IN_A), (initial, _INITIAL)):
            self.history[flags.to(self.history.device)] = code

    def used(self) -> tuple[float, float]:
        counts = torch.bincount(self.history, minlength=4)
        outside = int(counts.sum() - counts[_INITIAL])
        if outside == 0:
            return 0.0, 0.0
        in_a = int(counts[_BEEN_IN_A])
        return (int(counts[_BEEN_IN_B]) + in_a) / outside, in_a / outside


class SparseTheta:
    """θ that is zero outside B: nothing of dense size is made of it."""

    def __init__(self, numel: int, indices: Tensor, values: Tensor) -> None:
        self.numel = numel
        self._indices, self._values = indices.long(), values

    def top(self, k: int) -> Tensor:
        if k > self._indices.numel():
            raise ValueError(f"only {self._indices.numel()} elements are known, asked for the {k} largest")
        return self._indices[top_k(self._values, k)]

    def at(self, positions: Tensor) -> Tensor:
        if torch.equal(positions, self._indices):
            return self._values
        return gather(self._values, locate(self._indices, positions))


class EmptyReservoir(Reservoir):
    """C is zero and holds nothing: for methods that forget what leaves, or where nothing leaves."""

    kind = "empty"

    def __init__(self, numel: int) -> None:
        super().__init__()
        self.numel = numel

    def theta(self, indices: Tensor, values: Tensor) -> SparseTheta:
        return SparseTheta(self.numel, indices, values)

    def dense(self, indices: Tensor, values: Tensor) -> Tensor:
        return values.new_zeros(self.numel).index_copy_(0, indices.long(), values)

    def exchange(self, leaving: Tensor, leaving_values: Tensor, entering: Tensor) -> Tensor:
        return leaving_values.new_zeros(entering.numel())

    def largest(self) -> float:
        return 0.0

    def record(self, entered_a: Tensor, left_a: Tensor) -> None:
        pass

    def used(self) -> tuple[float, float]:
        return 0.0, 0.0
