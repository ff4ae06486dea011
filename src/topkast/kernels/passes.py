"""Passes over lists of numbers by the compiled core: Top-K, comparing and moving slots, the penalty."""

from __future__ import annotations

import torch
from torch import Tensor

try:
    from topkast.kernels import _native
except ImportError:  # reported where somebody asks for the engine; `is_present` says so here
    _native = None

_SUFFIX = {torch.float32: "float", torch.float64: "double"}


def is_present(device: torch.device) -> bool:
    """Whether the compiled core is there and can work on this device."""
    return _native is not None and device.type == "cpu"


def can_select(numbers: Tensor) -> bool:
    """Whether `top_k` takes this tensor."""
    return is_present(numbers.device) and numbers.dtype in _SUFFIX


def threads_for(numel: int) -> int:
    """How many threads to use for a pass over so many numbers: waking another one takes longer than a few."""
    return torch.get_num_threads() if numel >= 1 << 14 else 1


# Bytes of scratch memory that are worth giving back: smaller pieces are asked for again at once.
_LARGE = 1 << 25


def release_scratch() -> None:
    """Gives back the large pieces of memory that products keep for the next one; before an exchange."""
    if _native is not None:
        _native.release_scratch(_LARGE)


def top_k(numbers: Tensor, k: int) -> Tensor:
    """Positions of the k largest |numbers|, ties to the smaller position, increasing. O(n), threaded."""
    numbers = numbers.detach().contiguous()
    out = torch.empty(k, dtype=torch.int64)
    select = getattr(_native, f"top_k_{_SUFFIX[numbers.dtype]}")
    select(numbers.data_ptr(), numbers.numel(), k, out.data_ptr(), k, threads_for(numbers.numel()))
    return out


class Within:
    """Chooses the k largest |values| at every step, in about one pass over them; see `core.select.Within`."""

    def __init__(self) -> None:
        assert _native is not None  # `can_select` was asked
        self._core = _native.Within()

    def choose(self, values: Tensor, active: Tensor, k: int, favour: float) -> tuple[Tensor, float] | None:
        values, active = values.detach().contiguous(), active.contiguous()
        choose = self._core.choose_float if values.dtype == torch.float32 else self._core.choose_double
        n = values.numel()
        if not choose(values.data_ptr(), active.data_ptr(), n, k, favour, threads_for(n)):
            return None
        changed = torch.empty(self._core.num_changed, dtype=torch.int64)
        if changed.numel():
            self._core.write(changed.data_ptr(), changed.numel())
        return changed, self._core.threshold


Lines = tuple[int, int, int, int, int, int]
"""Rows, columns, taps, groups, and how many elements each row and each column keeps."""


def repair(
    lines: Lines, values: Tensor, positions: Tensor, active: Tensor, wrong: Tensor, least: float, bound: float
) -> tuple[Tensor, float]:
    """From a Top-K to one with floors; see `core.floor.Floor.repair`."""
    assert _native is not None  # `can_select` was asked
    core = _native.Floored()
    values, active = values.detach().contiguous(), active.contiguous()
    positions, wrong = positions.contiguous(), wrong.contiguous()
    choose = core.choose_float if values.dtype == torch.float32 else core.choose_double
    choose(lines, least, bound, *_buffer(values), *_typed(positions), *_buffer(active), *_buffer(wrong))
    changed = torch.empty(core.num_changed, dtype=torch.int64)
    core.write(*_buffer(changed))
    return changed, core.least


def penalty(values: Tensor, active: Tensor, outside: float, power: int) -> float:
    """Σ s·|θ|^power / power, where s is 1 in A and `outside` elsewhere."""
    values, active, n = values.contiguous(), active.contiguous(), values.numel()
    function = getattr(_native, f"penalty_{_SUFFIX[values.dtype]}")
    return function(values.data_ptr(), active.data_ptr(), n, outside, power, threads_for(n))


def penalty_grad(values: Tensor, active: Tensor, outside: float, power: int, factor: float) -> Tensor:
    """`factor` times the derivative of `penalty`."""
    values, active, n = values.contiguous(), active.contiguous(), values.numel()
    out = torch.empty_like(values)
    function = getattr(_native, f"penalty_grad_{_SUFFIX[values.dtype]}")
    buffers = (values.data_ptr(), active.data_ptr(), n)
    function(*buffers, outside, power, factor, out.data_ptr(), threads_for(n))
    return out


def shorten_step_(values: Tensor, before: Tensor, active: Tensor, factor: float) -> None:
    """Sets values to before + factor·(values - before) where not active. All are contiguous."""
    n, function = values.numel(), getattr(_native, f"shorten_step_{_SUFFIX[values.dtype]}")
    function(values.data_ptr(), before.data_ptr(), active.data_ptr(), n, factor, threads_for(n))


def decay_(values: Tensor, active: Tensor, inside: float, outside: float) -> None:
    """Multiplies values by `inside` where active, by `outside` elsewhere. Both are contiguous."""
    n, function = values.numel(), getattr(_native, f"decay_{_SUFFIX[values.dtype]}")
    function(values.data_ptr(), active.data_ptr(), n, inside, outside, threads_for(n))


def locate(before: Tensor, after: Tensor) -> Tensor:
    """See `core.select.locate`: in one pass over both lists, threaded."""
    assert _native is not None  # `is_present` was asked
    before, after = before.contiguous(), after.contiguous()
    source = torch.empty(after.numel(), dtype=places_dtype(before.numel()))
    threads = threads_for(after.numel())
    _native.locate(*_typed(before), *_typed(after), *_typed(source), threads)
    return source


def absent(positions: Tensor, other: Tensor) -> Tensor:
    """See `core.select.absent`: in one pass over both lists, threaded."""
    assert _native is not None  # `is_present` was asked
    positions, other = positions.contiguous(), other.contiguous()
    threads = threads_for(positions.numel())
    found = _native.Absent(*_typed(positions), *_typed(other), threads)
    places = torch.empty(found.size, dtype=places_dtype(positions.numel()))
    found.write(*_typed(places), threads)
    return places


class Union:
    """Two increasing lists without a common element as one, less those of the first at `dropped`.

    Args:
        a: Increasing positions.
        b: Others, of the same dtype.
        dropped: Places in `a`, or -1, which is passed over.
    """

    def __init__(self, a: Tensor, b: Tensor, dropped: Tensor | None = None) -> None:
        assert _native is not None  # `is_present` was asked
        self._a, self._b = a.contiguous(), b.contiguous()
        gone = torch.empty(0, dtype=torch.int64) if dropped is None else dropped.contiguous()
        self._threads = threads_for(a.numel() + b.numel())
        buffers = (*_buffer(self._a), *_typed(self._b), *_typed(gone))
        self._core = _native.Union(*buffers, self._threads)

    def positions(self) -> Tensor:
        """All of them, increasing. The lists are let go of: what else is asked for does not need them."""
        out = torch.empty(self._core.size, dtype=self._a.dtype)
        buffers = (*_buffer(self._a), *_buffer(self._b), *_typed(out))
        self._core.write_positions(*buffers, self._threads)
        del self._a, self._b
        return out

    def numbers(self, a: Tensor, b: Tensor) -> Tensor:
        """Numbers that belong to the lists, in the order of `positions`, which was asked for before."""
        a, b = a.contiguous(), b.contiguous()
        out = torch.empty(self._core.size, dtype=a.dtype)
        write = self._core.write_float if a.dtype == torch.float32 else self._core.write_double
        write(*_buffer(a), *_buffer(b), *_buffer(out), self._threads)
        return out


def mark(positions: Tensor, numel: int) -> Tensor:
    """A bit for each of `numel` positions, eight to a byte (the first is the lowest), set for those given."""
    assert _native is not None  # `is_present` was asked
    bits = torch.zeros(-(-numel // 8), dtype=torch.uint8)
    _native.mark(*_typed(positions.contiguous()), *_buffer(bits), numel, threads_for(positions.numel()))
    return bits


def marked(bits: Tensor, dtype: torch.dtype) -> Tensor:
    """The inverse of `mark`: positions, increasing."""
    assert _native is not None  # `is_present` was asked
    found = _native.Marked(*_buffer(bits), threads_for(bits.numel()))
    positions = torch.empty(found.size, dtype=dtype)
    found.write(*_buffer(bits), *_typed(positions), threads_for(bits.numel()))
    return positions


def places_dtype(length: int) -> torch.dtype:
    """What holds a place in a list of this length, and -1."""
    return torch.int32 if length < 2**31 else torch.int64


def can_gather(numbers: Tensor, places: Tensor) -> bool:
    """Whether `gather` takes these tensors."""
    is_list = numbers.ndim == 1 and numbers.element_size() in (1, 2, 4, 8)
    has_places = places.dtype in (torch.int32, torch.int64) and places.device.type == "cpu"
    return is_present(numbers.device) and is_list and has_places


def gather(numbers: Tensor, source: Tensor, fill: float = 0) -> Tensor:
    """``numbers[source]``, `fill` where that is -1. Threaded: torch's `index_select` of a list is not."""
    numbers, source = numbers.detach().contiguous(), source.contiguous()
    out = torch.empty(source.numel(), dtype=numbers.dtype)
    other = torch.full((1,), fill, dtype=numbers.dtype)
    function = getattr(_native, f"gather_{numbers.element_size()}")
    threads = threads_for(source.numel())
    function(*_buffer(numbers), *_typed(source), other.data_ptr(), *_buffer(out), threads)
    return out


def _buffer(x: Tensor) -> tuple[int, int]:
    return x.data_ptr(), x.numel()


def _typed(x: Tensor) -> tuple[int, int, int]:
    return x.data_ptr(), x.numel(), x.element_size()
