"""The implicit reservoir: C without storing it. Memory and refresh time follow |B|, not the dense size.

θ⁰ is a stream of elements by decreasing magnitude (`kernels.stream`). What has been in B is *known*: it is in
B now or was written down when it left (*returned*). Everything else is what the stream says. So the state is

    cursor      All ranks below it are known.
    early       Ranks from the cursor on that are known too. (Random exploration takes from the middle of the
                stream. Of equal magnitudes the one with the smaller position goes first.)
    returned    Positions and values of what has left B.

Positions are a list, or a bit for each element of the weight where that is half as long (`compact`).

An exchange looks at B, at what was returned, and at the head of the stream. The stream is sorted. So the
candidates are the ranks from the cursor on that are at least as large as the k-th largest magnitude of all.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from topkast.core.initial import Initial
from topkast.core.loading import all_finite
from topkast.core.reservoir import Reservoir, StoredReservoir, Theta
from topkast.core.select import absent, gather, locate
from topkast.kernels.passes import Union, mark, marked
from topkast.kernels.positions import check_positions, index_dtype
from topkast.kernels.stream import KINDS, Known, Stream

# Elements that are looked up at a time where only their number is wanted.
_PART = 1 << 20

_NUMBERS = ("key", "cursor", "first_cursor", "activated")
_RANKS = ("early", "first_early")
_COMPACT = ("returned_positions", "retired")


# ---- positions in less room ----------------------------------------------------------------------------


def compact(positions: Tensor, numel: int) -> Tensor:
    """Increasing positions below `numel`; as a bit for each there can be (uint8) where that is half as long.

    Only then, because an exchange needs the list again beside the bits.
    """
    is_worth_it = 2 * -(-numel // 8) <= positions.nbytes
    return mark(positions, numel) if is_worth_it else positions


def listed(kept: Tensor, numel: int) -> Tensor:
    """The positions that `compact` was given."""
    return marked(kept, index_dtype(numel)) if kept.dtype == torch.uint8 else kept


def _problem_of_bits(name: str, bits: Tensor, numel: int) -> str | None:
    wanted = -(-numel // 8)
    if tuple(bits.shape) != (wanted,):
        return f"{name} must have {wanted} bytes, a bit for each of {numel} elements, got {tuple(bits.shape)}"
    if numel % 8 and int(bits[-1]) >> numel % 8:
        return f"{name} has bits beyond its {numel} elements"
    return None


# ---- what its state must be like -----------------------------------------------------------------------


def _state_problem(
    numel: int, dtype: torch.dtype, state: Mapping[str, Tensor], indices: Tensor
) -> str | None:
    """Says what is wrong with a state whose B is at `indices`, or None when it is sound.

    The rule that ties everything together: what is known, B and the returned elements, is exactly the ranks
    below the cursor and the early ones. It holds for no other key, size or distribution.
    """
    for name in _COMPACT:
        if state[name].dtype == torch.uint8:
            wrong = _problem_of_bits(name, state[name], numel)
            if wrong is not None:
                return wrong
            state = {**state, name: listed(state[name], numel)}
    return (
        _problem_of_numbers(numel, state)
        or _problem_of_initial(state["initial"])
        or _problem_of_ranks(numel, state)
        or _problem_of_returned(numel, dtype, state, indices)
        or _problem_of_knowledge(numel, dtype, state, indices)
    )


def _problem_of_numbers(numel: int, state: Mapping[str, Tensor]) -> str | None:
    for name in _NUMBERS:
        number = state[name]
        if number.ndim != 0 or number.dtype != torch.int64:
            return f"{name} must be one int64 number"
        if int(number) < 0:
            return f"{name} must not be negative, got {int(number)}"
        if name != "key" and int(number) > numel:
            return f"{name} must lie in [0, {numel}], got {int(number)}"
    return None


def _problem_of_initial(initial: Tensor) -> str | None:
    if tuple(initial.shape) != (3,) or initial.dtype != torch.float64:
        return "initial must be three float64 numbers: kind, scale, mass"
    kind, scale, mass = initial.tolist()
    if kind not in range(len(KINDS)):
        return f"initial must begin with 0 (uniform) or 1 (normal), got {kind}"
    if not (math.isfinite(scale) and scale > 0):
        return f"the initial scale must be positive and finite, got {scale}"
    return None if 0 < mass <= 1 else f"the initial mass must lie in (0, 1], got {mass}"


def _problem_of_ranks(numel: int, state: Mapping[str, Tensor]) -> str | None:
    for name in _RANKS:
        ranks = state[name]
        wrong = _problem_of_positions(name, ranks, numel)
        if wrong is not None:
            return wrong
        start = int(state["cursor" if name == "early" else "first_cursor"])
        if ranks.numel() and int(ranks[0]) < start:
            return f"{name} must hold ranks from the cursor ({start}) on, got {int(ranks[0])}"
    return _problem_of_positions("retired", state["retired"], numel)


def _problem_of_positions(name: str, positions: Tensor, numel: int) -> str | None:
    flags = torch.zeros(positions.shape, dtype=torch.bool)
    wrong = check_positions(positions, flags, numel)
    return None if wrong is None else wrong.replace("indices", name, 1)


def _problem_of_returned(
    numel: int, dtype: torch.dtype, state: Mapping[str, Tensor], indices: Tensor
) -> str | None:
    positions, values = state["returned_positions"], state["returned_values"]
    wrong = _problem_of_positions("returned_positions", positions, numel)
    if wrong is not None:
        return wrong
    if values.shape != positions.shape or not values.is_floating_point():
        return f"returned_values must hold one number per returned position ({positions.numel()})"
    if not all_finite(values, dtype):
        return f"reservoir.returned_values has numbers that are not finite in {dtype}"
    if absent(positions, indices.to(positions.dtype)).numel() != positions.numel():
        return "returned_positions must not be in B"
    return None


def _problem_of_knowledge(
    numel: int, dtype: torch.dtype, state: Mapping[str, Tensor], indices: Tensor
) -> str | None:
    kind, scale, mass = state["initial"].tolist()
    stream = Stream(numel, int(state["key"]), KINDS[int(kind)], scale, mass, dtype)
    known = torch.cat([stream.ranks(indices), stream.ranks(state["returned_positions"])]).sort().values
    cursor = int(state["cursor"])
    below = known[:cursor]
    if (
        below.numel() != cursor
        or (cursor and int(below[-1]) != cursor - 1)
        or not torch.equal(known[cursor:], state["early"])
    ):
        return (
            f"key, cursor ({cursor}) and early do not fit the positions of B and of the returned elements: "
            "the state was altered, or is that of another layer"
        )
    return None


class ImplicitTheta:
    """θ as a method sees it: B, the returned elements, and the stream from the cursor on."""

    def __init__(self, reservoir: ImplicitReservoir, indices: Tensor, values: Tensor) -> None:
        self.numel = reservoir.numel
        self._reservoir = reservoir
        self._indices = indices.to("cpu", index_dtype(reservoir.numel))
        self._values = values.detach().cpu()
        self._last: tuple[Tensor, Tensor] | None = None

    def top(self, k: int) -> Tensor:
        if k == 0:
            return torch.empty(0, dtype=torch.int64)
        reservoir = self._reservoir
        self._last = reservoir.stream().largest(reservoir.known(), self._b(), reservoir.returned(), k)
        return self._last[0]  # the method asks for their values next

    def at(self, positions: Tensor) -> Tensor:
        """From B where it is there, then from the returned elements, then from the stream."""
        if self._last is not None and positions is self._last[0]:
            return self._last[1]
        positions = positions.cpu().long()
        values = torch.empty(positions.numel(), dtype=self._values.dtype)
        left = torch.arange(positions.numel())
        for known, known_values in (self._b(), self._reservoir.returned()):
            source = locate(known, positions[left])
            found = source >= 0
            values[left[found]] = known_values[source[found]]
            left = left[~found]
        values[left] = self._reservoir.stream().look_up(positions[left])[1]
        return values

    def _b(self) -> tuple[Tensor, Tensor]:
        return self._indices, self._values


class ImplicitReservoir(Reservoir):
    """C as a keyed stream.

    Buffers:
        key: Which stream.
        initial: Kind, scale and mass of the initial distribution.
        cursor, early, returned_values: See above.
        returned_positions: See above; as `compact` has them.
        first_cursor, first_early: The first B: ranks below the one, and the others.
        activated: How many elements of the initial C have been in A.
        retired: Positions of elements that have been in A and are not now; as `compact` has them.
    """

    kind = "implicit"
    key: Tensor
    initial: Tensor
    cursor: Tensor
    early: Tensor
    returned_positions: Tensor
    returned_values: Tensor
    first_cursor: Tensor
    first_early: Tensor
    activated: Tensor
    retired: Tensor

    def __init__(self, numel: int, key: int, initial: Initial, dtype: torch.dtype) -> None:
        super().__init__()
        self.numel = numel
        self.dtype = dtype
        positions = torch.empty(0, dtype=index_dtype(numel))
        self.register_buffer("key", torch.tensor(key, dtype=torch.int64))
        spec = (float(KINDS.index(initial.kind)), initial.scale, initial.mass)
        self.register_buffer("initial", torch.tensor(spec, dtype=torch.float64))
        for name in ("cursor", "first_cursor", "activated"):
            self.register_buffer(name, torch.zeros((), dtype=torch.int64))
        for name in ("early", "first_early"):
            self.register_buffer(name, torch.empty(0, dtype=torch.int64))
        self.register_buffer("returned_positions", positions)
        self.register_buffer("returned_values", torch.empty(0, dtype=dtype))
        self.register_buffer("retired", positions.clone())
        self.stream()  # raises for what cannot be

    def _apply(self, fn: Any, recurse: bool = True) -> ImplicitReservoir:
        # It stays on the CPU, where refreshes are computed, and exact, whatever becomes of the model.
        return self

    def stream(self) -> Stream:
        kind, scale, mass = self.initial.tolist()
        return Stream(self.numel, int(self.key), KINDS[int(kind)], scale, mass, self.dtype)

    def returned(self) -> tuple[Tensor, Tensor]:
        """Positions, increasing, and values of what has left B."""
        return listed(self.returned_positions, self.numel), self.returned_values

    def known(self) -> Known:
        """Which ranks have been in B."""
        return Known(int(self.cursor), self.early)

    def begin(self, indices: Tensor) -> Tensor:
        """Takes note of the first B and gives θ⁰ on it."""
        indices = indices.cpu().long()
        values = self._enter(indices, torch.full_like(indices, -1))
        self.first_cursor.copy_(self.cursor)
        self.first_early = self.early.clone()
        return values

    def _enter(self, positions: Tensor, source: Tensor) -> Tensor:
        """Values of what enters B, from the returned elements at `source` or else from the stream."""
        values, known = self.stream().enter(self.known(), positions, source, self.returned_values)
        self.cursor.fill_(known.cursor)
        self.early = known.early
        return values

    def _is_initial(self, ranks: Tensor) -> Tensor:
        """Whether they were in the first B."""
        is_below, first = ranks < self.first_cursor, self.first_early
        if first.numel() == 0:
            return is_below
        place = torch.searchsorted(first, ranks).clamp_(max=first.numel() - 1)
        return is_below | (first[place] == ranks)

    def theta(self, indices: Tensor, values: Tensor) -> Theta:
        return ImplicitTheta(self, indices, values)

    def dense(self, indices: Tensor, values: Tensor) -> Tensor:
        theta = self.stream().dense()
        positions, returned = self.returned()
        theta[positions.long()] = returned
        theta[indices.cpu().long()] = values.detach().cpu().to(self.dtype)
        return theta.to(values)

    def largest(self) -> float:
        # The first rank that is not known is the one at the cursor; what was returned may be larger.
        cursor, returned = int(self.cursor), self.returned_values
        drawn = self.stream().magnitude(cursor) if cursor < self.numel else 0.0
        return max(drawn, float(returned.abs().max())) if returned.numel() else drawn

    def exchange(self, leaving: Tensor, leaving_values: Tensor, entering: Tensor) -> Tensor:
        # One form of the positions at a time: of a large weight both would count.
        self.returned_positions = listed(self.returned_positions, self.numel)
        entering = entering.cpu()
        source = locate(self.returned_positions, entering)
        entrants = self._enter(entering, source)
        del entering
        positions = leaving.to("cpu", self.returned_positions.dtype)
        left_values = leaving_values.detach().to("cpu", self.dtype)
        both = Union(self.returned_positions, positions, dropped=source)
        del source
        self.returned_positions = both.positions()  # before the values: the old ones make room
        self.returned_values = both.numbers(self.returned_values, left_values)
        del both, positions, left_values
        self.returned_positions = compact(self.returned_positions, self.numel)
        return entrants.to(leaving_values)

    def record(self, entered_a: Tensor, left_a: Tensor) -> None:
        self.retired = listed(self.retired, self.numel)
        entered = entered_a.to("cpu", self.retired.dtype)
        source = locate(self.retired, entered)
        first_time = absent(entered, self.retired)
        for part in first_time.split(_PART):
            ranks = self.stream().ranks(gather(entered, part))
            self.activated += int((~self._is_initial(ranks)).sum())
        del entered_a, entered, first_time  # of a large weight these count where the next lists are made
        self.retired = Union(self.retired, left_a.to("cpu", self.retired.dtype), dropped=source).positions()
        del left_a, source
        self.retired = compact(self.retired, self.numel)

    def used(self) -> tuple[float, float]:
        initial = int(self.first_cursor) + self.first_early.numel()
        if initial == self.numel:
            return 0.0, 0.0
        num_known = int(self.cursor) + self.early.numel()
        # All of the first B is known, and the rest of what is known has entered since.
        return (num_known - initial) / (self.numel - initial), int(self.activated) / (self.numel - initial)

    def materialise(self, indices: Tensor, active: Tensor, values: Tensor) -> StoredReservoir:
        """The same C, stored: it goes on exactly as this one would."""
        stored = StoredReservoir(self.dense(indices, values), indices.long())
        everywhere = torch.arange(self.numel)
        known, been_active = torch.zeros(2, self.numel, dtype=torch.bool)
        for positions in (self.returned()[0], indices.cpu()):
            known[positions.long()] = True
        for positions in (listed(self.retired, self.numel), indices.cpu()[active.cpu()]):
            been_active[positions.long()] = True
        stored.take_history(self._is_initial(self.stream().ranks(everywhere)), known, been_active)
        return stored

    # ---- loading --------------------------------------------------------------------------------

    def problem(self, state: Mapping[str, Tensor], indices: Tensor) -> str | None:
        return _state_problem(self.numel, self.dtype, state, indices)

    def _load_from_state_dict(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, state_dict: Any, prefix: str, local_metadata: Any, *rest: Any
    ) -> None:
        for name, mine in list(self.named_buffers()):
            theirs = state_dict.get(prefix + name)
            if theirs is None:
                continue
            is_bits = name in _COMPACT and theirs.dtype == torch.uint8
            dtype = torch.uint8 if is_bits else index_dtype(self.numel) if name in _COMPACT else mine.dtype
            if theirs.shape != mine.shape or dtype != mine.dtype:
                setattr(self, name, torch.empty(theirs.shape, dtype=dtype))
        super()._load_from_state_dict(state_dict, prefix, local_metadata, *rest)
