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

    def choose(self, values: Tensor, active: Tensor, k: int) -> tuple[Tensor, float] | None:
        values, active = values.detach().contiguous(), active.contiguous()
        choose = self._core.choose_float if values.dtype == torch.float32 else self._core.choose_double
        n = values.numel()
        if not choose(values.data_ptr(), active.data_ptr(), n, k, threads_for(n)):
            return None
        changed = torch.empty(self._core.num_changed, dtype=torch.int64)
        if changed.numel():
            self._core.write(changed.data_ptr(), changed.numel())
        return changed, self._core.threshold


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


def count_at_least(numbers: Tensor, threshold: float) -> int:
    """How many of |numbers| are at least `threshold`."""
    numbers = numbers.detach().contiguous()
    count = getattr(_native, f"count_at_least_{_SUFFIX[numbers.dtype]}")
    return count(*_buffer(numbers), threshold, threads_for(numbers.numel()))


def match(before: Tensor, after: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """See `core.select.match`: the same in one pass over both lists, threaded."""
    assert _native is not None  # `is_present` was asked
    before, after = before.contiguous(), after.contiguous()
    source = torch.empty_like(after)
    threads = threads_for(after.numel())
    changes = _native.Changes(*_buffer(before), *_buffer(after), *_buffer(source), threads)
    entering, leaving = after.new_empty(changes.num_entering), after.new_empty(changes.num_leaving)
    changes.write(*_buffer(entering), *_buffer(leaving))
    return source, entering, leaving


def can_gather(numbers: Tensor, places: Tensor) -> bool:
    """Whether `gather` takes these tensors."""
    is_list = numbers.ndim == 1 and numbers.element_size() in (1, 2, 4, 8)
    has_places = places.dtype == torch.int64 and places.device.type == "cpu"
    return is_present(numbers.device) and is_list and has_places


def gather(numbers: Tensor, source: Tensor) -> Tensor:
    """``numbers[source]``. Threaded: torch's `index_select` of one dimension is not."""
    numbers, source = numbers.detach().contiguous(), source.contiguous()
    out = torch.empty(source.numel(), dtype=numbers.dtype)
    function = getattr(_native, f"gather_{numbers.element_size()}")
    function(*_buffer(numbers), *_buffer(source), *_buffer(out), threads_for(source.numel()))
    return out


def _buffer(x: Tensor) -> tuple[int, int]:
    return x.data_ptr(), x.numel()
