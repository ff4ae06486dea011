"""`Stream`: an initial θ that is not stored, as the compiled core computes it. See `native/stream.hpp`."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from topkast.kernels import native, passes

LARGEST = 2**48
KINDS = ("uniform", "normal")
_SUFFIX = {torch.float32: "float", torch.float64: "double"}


def check_dtype(dtype: torch.dtype) -> None:
    """Raises unless a stream can have this dtype. (Half precision has too few magnitudes to rank by.)"""
    if dtype not in _SUFFIX:
        raise ValueError(
            f"an implicit weight must be float32 or float64, got {dtype}; use autocast for half precision"
        )


Listed = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Known:
    """Which ranks of a stream are known: all below the cursor, and the early ones, which increase."""

    cursor: int
    early: Tensor

    def buffers(self) -> tuple[int, int, int]:
        return self.cursor, self.early.data_ptr(), self.early.numel()


class Stream:
    """The elements of one initial θ in order of magnitude: rank 0 is the largest.

    Args:
        numel: n, at most 2⁴⁸.
        key: Which of all such θ.
        kind: Distribution of θ: "uniform" or "normal".
        scale: Bound of the uniform, standard deviation of the normal distribution.
        mass: Share of the normal distribution that is kept: 1, or less if large magnitudes are cut off.
        dtype: What magnitudes are rounded to.

    Raises:
        ValueError: A size or a parameter is out of range.
        RuntimeError: The compiled core is missing.
    """

    def __init__(
        self, numel: int, key: int, kind: str, scale: float, mass: float, dtype: torch.dtype
    ) -> None:
        core = native._native
        if core is None:
            raise RuntimeError(f"an implicit reservoir cannot be computed: {native.why_missing()}")
        check_dtype(dtype)
        if not 1 <= numel <= LARGEST:
            raise ValueError(f"an implicit weight must have 1 to 2^48 elements, got {numel:,}")
        self.numel = numel
        self.dtype = dtype
        self._stream = core.Stream(numel, key, KINDS.index(kind), scale, mass)

    def positions(self, first: int, count: int) -> Tensor:
        """Positions of `count` ranks from `first` on, increasing (not in order of rank)."""
        out = torch.empty(count, dtype=torch.int64)
        self._stream.positions(first, count, out.data_ptr(), count, passes.threads_for(count))
        return out

    def largest(self, known: Known, b: Listed, returned: Listed, k: int) -> Listed:
        """The k largest of θ as it is now, ties to the smaller position: positions (int64), and values.

        Args:
            known: Which ranks are known: those of B and of what has left it.
            b: Positions and values of B, increasing.
            returned: Of what has left B, with positions of the same dtype.
            k: From 1 to n.
        """
        positions, values = torch.empty(k, dtype=torch.int64), torch.empty(k, dtype=self.dtype)
        lists = []
        for indices, numbers in (b, returned):
            numbers = numbers.detach().contiguous()
            lists += [indices.contiguous(), numbers]
        function = getattr(self._stream, f"largest_{_SUFFIX[self.dtype]}")
        function(
            *known.buffers(),
            *(lists[0].data_ptr(), lists[1].data_ptr(), lists[0].numel()),
            *(lists[2].data_ptr(), lists[3].data_ptr(), lists[2].numel()),
            *(b[0].element_size(), k, positions.data_ptr(), values.data_ptr()),
            passes.threads_for(b[0].numel() + returned[0].numel() + k),
        )
        return positions, values

    def enter(
        self, known: Known, positions: Tensor, source: Tensor, returned_values: Tensor
    ) -> tuple[Tensor, Known]:
        """Values of elements that enter B, and what is known then.

        Args:
            known: Which ranks are known now.
            positions: Of the elements, increasing (int64).
            source: For each its place among the returned elements, or -1 if it was never in B.
            returned_values: Of the returned elements.
        """
        positions, source = positions.contiguous(), source.contiguous()
        values = torch.empty(positions.numel(), dtype=self.dtype)
        entrants = getattr(native._native, f"entrants_{_SUFFIX[self.dtype]}")(
            self._stream,
            *known.buffers(),
            *(positions.data_ptr(), positions.numel(), source.data_ptr(), source.element_size()),
            *(returned_values.data_ptr(), returned_values.numel(), values.data_ptr()),
            passes.threads_for(positions.numel()),
        )
        early = torch.empty(entrants.num_early, dtype=torch.int64)
        entrants.write_early(early.data_ptr(), early.numel())
        return values, Known(entrants.cursor, early)

    def look_up(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Ranks, and θ, at the given positions."""
        positions = positions.cpu().long().contiguous()
        ranks, values = torch.empty_like(positions), torch.empty(positions.numel(), dtype=self.dtype)
        function = getattr(self._stream, f"look_up_{_SUFFIX[self.dtype]}")
        buffers = [n for t in (positions, ranks, values) for n in (t.data_ptr(), t.numel())]
        function(*buffers, passes.threads_for(positions.numel()))
        return ranks, values

    def ranks(self, positions: Tensor) -> Tensor:
        return self.look_up(positions)[0]

    def count_at_least(self, threshold: float) -> int:
        """How many elements have a magnitude of at least `threshold`: the first rank that has not."""
        return getattr(self._stream, f"count_at_least_{_SUFFIX[self.dtype]}")(threshold)

    def magnitude(self, rank: int) -> float:
        """Of one rank."""
        position = self.positions(rank, 1)
        return abs(float(self.look_up(position)[1]))

    def dense(self) -> Tensor:
        """All of θ, flat. For small weights."""
        out = torch.empty(self.numel, dtype=self.dtype)
        getattr(self._stream, f"dense_{_SUFFIX[self.dtype]}")(
            out.data_ptr(), self.numel, passes.threads_for(self.numel)
        )
        return out
