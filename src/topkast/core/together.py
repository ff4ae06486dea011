"""The Top-K over several weights together. Every weight keeps at least one element.

The order is: larger magnitude first, then the earlier weight, then the smaller position.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from topkast.core.reservoir import Theta
from topkast.core.select import top_k


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
