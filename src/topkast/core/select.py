"""Choosing elements: exact Top-K by magnitude, uniform random choice, what has changed. Pure functions.

The order of every Top-K is: larger magnitude first, then smaller position. `torch.topk` leaves ties to
the implementation, which would make sets differ between machines and versions. Over several weights together
the earlier weight goes before the smaller position, and every weight keeps at least one element.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from topkast.kernels import passes

if TYPE_CHECKING:
    from topkast.core.reservoir import Theta


def top_k(numbers: Tensor, k: int) -> Tensor:
    """Positions of the `k` largest magnitudes, ties to the smaller position.

    Args:
        numbers: 1-D, finite (NaN has no rank: the caller checks).
        k: Between 0 and how many there are.

    Returns:
        int64 positions, increasing.
    """
    n = numbers.numel()
    if k >= n:
        return torch.arange(n, device=numbers.device)
    if k <= 0:
        return torch.empty(0, dtype=torch.int64, device=numbers.device)
    return passes.top_k(numbers, k) if passes.can_select(numbers) else top_k_portable(numbers, k)


def top_k_portable(numbers: Tensor, k: int) -> Tensor:
    """`top_k` with torch alone, on any device: all above the k-th largest, and the first that equal it."""
    magnitudes = numbers.abs()
    threshold = torch.kthvalue(magnitudes, magnitudes.numel() - k + 1).values
    chosen = magnitudes > threshold
    num_ties = k - int(chosen.sum())
    ties = torch.nonzero(magnitudes == threshold).flatten()[:num_ties]
    chosen[ties] = True
    return torch.nonzero(chosen).flatten()


def by_flag(active: Tensor, inside: float, outside: float, like: Tensor) -> Tensor:
    """For every slot one of two numbers, in the dtype of `like`.

    On the CPU they are looked up: `torch.where` branches there on every flag, 3.5 ns each against 0.65.
    """
    if not active.is_cpu:
        return torch.where(active, like.new_full((), inside), like.new_full((), outside))
    return torch.tensor([outside, inside], dtype=like.dtype).index_select(0, active.int())


def favoured(numbers: Tensor, active: Tensor, factor: float) -> Tensor:
    """s·numbers with s = factor where `active`, and 1 elsewhere: what a Top-K with hysteresis looks at.

    As it is for a factor of 1. The product is rounded to the dtype, so that every path sees the same ties.
    """
    return numbers if factor == 1 else numbers * by_flag(active, factor, 1.0, numbers)


class Within:
    """Choosing A within B, step after step: it remembers the last threshold, which makes the next cheap.

    What it remembers decides the cost and not the result.
    """

    def __init__(self) -> None:
        self._native: passes.Within | None = None

    def choose(
        self, values: Tensor, active: Tensor, k: int, favour: float = 1.0
    ) -> tuple[Tensor, float] | None:
        """Compares the `k` largest magnitudes, ties to the smaller slot, with the flags in `active`.

        Magnitudes of what is active count `favour` times, as `favoured` has them.

        Returns:
            The slots whose flag is not what it should be (int64, increasing), and the k-th largest magnitude;
            None if a number is not finite.
        """
        if not (passes.can_select(values) and active.is_cpu):
            return within_portable(favoured(values.detach(), active, favour), active, k)
        if self._native is None:
            self._native = passes.Within()
        return self._native.choose(values, active, k, favour)


def within_portable(values: Tensor, active: Tensor, k: int) -> tuple[Tensor, float] | None:
    """`Within.choose` with torch alone, on any device."""
    if not torch.isfinite(values).all():
        return None
    chosen = top_k(values.detach(), k)
    wanted = torch.zeros_like(active).index_fill_(0, chosen, True)
    threshold = float(values.detach()[chosen].abs().min()) if chosen.numel() else float("inf")
    return torch.nonzero(wanted != active).flatten(), threshold


def top_together(thetas: Sequence[Theta], guesses: Sequence[int]) -> list[Tensor]:
    """The positions, by weight, of the k largest |θ| of all, where k is the sum of `guesses`.

    Args:
        thetas: θ of each weight.
        guesses: How many of each may be expected. They decide the cost and not the result: a weight all of
            whose candidates are chosen is asked for twice as many, so that nothing of dense size is looked
            at.
    """
    total = sum(guesses)
    asked = [min(theta.numel, max(1, guess)) for theta, guess in zip(thetas, guesses, strict=True)]
    while True:
        positions = [theta.top(k) for theta, k in zip(thetas, asked, strict=True)]
        magnitudes = [theta.at(p) for theta, p in zip(thetas, positions, strict=True)]
        slots = within_together(magnitudes, total)
        short = [i for i, s in enumerate(slots) if s.numel() == asked[i] and asked[i] < thetas[i].numel]
        if not short:
            return [p[s] for p, s in zip(positions, slots, strict=True)]
        for i in short:
            asked[i] = min(thetas[i].numel, 2 * asked[i])


def within_together(numbers: Sequence[Tensor], k: int) -> list[Tensor]:
    """The places, by list, of the k largest magnitudes of all lists; at least one of each."""
    firsts = [n.abs().clone() for n in numbers]
    for magnitudes in firsts:
        # The largest of each list is in whatever the others are.
        magnitudes[top_k(magnitudes, 1)] = torch.finfo(magnitudes.dtype).max
    widest = max(firsts, key=lambda m: m.element_size()).dtype
    flat = torch.cat([m.to("cpu", widest) for m in firsts])
    chosen = top_k(flat, k)
    ends = torch.tensor([m.numel() for m in firsts]).cumsum(0)
    cuts = torch.searchsorted(chosen, ends)
    places, begin, base = [], 0, 0
    for cut, end, like in zip(cuts.tolist(), ends.tolist(), numbers, strict=True):
        places.append((chosen[begin:cut] - base).to(like.device))
        begin, base = cut, end
    return places


def locate(before: Tensor, after: Tensor) -> Tensor:
    """For each entry of `after` its place in `before`, or -1. Both are increasing positions."""
    if passes.is_present(before.device):
        return passes.locate(before, after)
    return locate_portable(before, after)


def locate_portable(before: Tensor, after: Tensor) -> Tensor:
    """`locate` with torch alone, on any device."""
    before, after = before.long(), after.long()
    if before.numel() == 0:
        return torch.full_like(after, -1)
    source = torch.searchsorted(before, after).clamp_(max=before.numel() - 1)
    return source.masked_fill_(before.index_select(0, source) != after, -1)


def absent(positions: Tensor, other: Tensor) -> Tensor:
    """Places in a list of positions of those that another list does not have. Both are increasing."""
    if passes.is_present(positions.device):
        return passes.absent(positions, other)
    return absent_portable(positions, other)


def absent_portable(positions: Tensor, other: Tensor) -> Tensor:
    """`absent` with torch alone, on any device."""
    return torch.nonzero(locate_portable(other, positions) < 0).flatten()


def union(a: Tensor, b: Tensor) -> Tensor:
    """Two increasing lists of positions without a common one, of one dtype, as one."""
    if passes.is_present(a.device):
        return passes.Union(a, b).positions()
    return torch.cat([a, b]).sort().values


def gather(numbers: Tensor, places: Tensor, fill: float = 0) -> Tensor:
    """``numbers[places]``, of a list of numbers, and `fill` where a place is -1.

    An exchange does this with everything that is as long as B.
    """
    if passes.can_gather(numbers, places):
        return passes.gather(numbers, places, fill)
    is_there = places != -1
    out = numbers.new_full((places.numel(),), fill)
    return out.masked_scatter_(is_there, numbers.index_select(0, places[is_there]))


def random_subset(n: int, k: int, generator: torch.Generator) -> Tensor:
    """`k` of the integers below `n`, uniformly without replacement, increasing.

    Memory and time follow k, not n: draws are repeated until enough distinct ones are there, then the
    surplus is removed at random (cutting off a sorted tail would favour small numbers).
    """
    if 3 * k > n:
        return torch.randperm(n, generator=generator)[:k].sort().values
    chosen = torch.empty(0, dtype=torch.int64)
    while chosen.numel() < k:
        draw = torch.randint(n, (k - chosen.numel() + 16,), generator=generator)
        chosen = torch.unique(torch.cat([chosen, draw]))
    kept = torch.randperm(chosen.numel(), generator=generator)[:k]
    return chosen[kept].sort().values


def random_outside(n: int, k: int, excluded: Tensor, generator: torch.Generator) -> Tensor:
    """`k` of the integers below `n` that are not in `excluded` (increasing), uniformly, increasing.

    The m-th integer outside the excluded set e_0 < e_1 < … is m + j, where j is the number of excluded
    integers with e_i - i <= m.
    """
    excluded = excluded.cpu()
    free = random_subset(n - excluded.numel(), k, generator)
    gaps = excluded - torch.arange(excluded.numel())
    return free + torch.searchsorted(gaps, free, right=True)


def derive_key(seed: int, name: str) -> int:
    """A 63-bit key for one weight, from the run's seed and the weight's name; the same everywhere."""
    digest = hashlib.blake2b(f"{seed}:{name}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


def generator_for(key: int, step: int) -> torch.Generator:
    """A generator that depends on the key and the step alone, so that a resumed run draws the same."""
    return torch.Generator().manual_seed(derive_key(key, f"step {step}"))
