"""The rules for positions of B and flags of A, and a number by which their content is known again.

Both are done by the compiled core where it is there, which needs a tenth of the time and no memory.
"""

from __future__ import annotations

import torch
from torch import Tensor

try:
    from topkast.kernels import _native
except ImportError:  # reported where somebody asks for the engine; here torch will do
    _native = None

# torch's CSR products want 32-bit indices where they fit (MKL converts 64-bit ones on every call).
_INT32_LIMIT = 2**31 - 1
# Odd numbers without a pattern, as signed 64-bit integers.
_SAMPLE = 4096
_MIX = (-0x61C8864680B583EB, -0x3B314601E57A13AD)


def index_dtype(numel: int) -> torch.dtype:
    """The smallest of int32 and int64 that holds every position of a weight with `numel` elements."""
    return torch.int32 if numel <= _INT32_LIMIT else torch.int64


def check_positions(positions: Tensor, active: Tensor, numel: int) -> str | None:
    """Says what is wrong with the positions of B and the flags of A, or None when they are sound.

    The rules: one dimension, integers, in ``[0, numel)``, strictly increasing (so unique); one bool per
    position in `active`.
    """
    try:
        fingerprint(positions, active, numel)
    except ValueError as error:
        return str(error)
    return None


def fingerprint(positions: Tensor, active: Tensor, numel: int) -> int:
    """A number for the content of sound positions and flags: other content has another one.

    But for one case in 2^64, and on the same device with the same dtype.

    Raises:
        ValueError: A rule of `check_positions` is broken.
    """
    _check_types(positions, active)
    if _native is None or positions.device.type != "cpu" or active.device.type != "cpu":
        _check_order(positions, numel)
        return _mixed(positions, active)
    positions, active = positions.detach().contiguous(), active.detach().contiguous()
    buffers = (positions.data_ptr(), positions.element_size(), active.data_ptr(), positions.numel())
    return _native.inspect(*buffers, numel, torch.get_num_threads())


def glance(positions: Tensor, active: Tensor) -> int:
    """A number for a sample of the content, in about a microsecond: other content most likely has another.

    It sees what a version counter does not: a write through `.data`, or by foreign code. Off the CPU it would
    have to wait for the device, and is always the same.
    """
    if not (positions.is_cpu and active.is_cpu):
        return 0
    if _native is None or not (positions.is_contiguous() and active.is_contiguous()):
        stride = max(1, positions.numel() // _SAMPLE)
        return _mixed(positions[::stride], active[::stride])
    size = positions.element_size()
    return _native.glance(positions.data_ptr(), size, active.data_ptr(), positions.numel())


def _check_types(positions: Tensor, active: Tensor) -> None:
    if positions.ndim != 1 or positions.dtype not in (torch.int32, torch.int64):
        raise ValueError(
            f"indices must be a 1-D int32 or int64 tensor, got {positions.ndim}-D {positions.dtype}"
        )
    if active.shape != positions.shape or active.dtype != torch.bool:
        raise ValueError(
            f"active must hold one bool per index ({positions.numel()}), "
            f"got {tuple(active.shape)} {active.dtype}"
        )


def _check_order(positions: Tensor, numel: int) -> None:
    if positions.numel() == 0:
        return
    low, high = int(positions.min()), int(positions.max())
    if low < 0 or high >= numel:
        raise ValueError(f"indices must lie in [0, {numel}), got {low if low < 0 else high}")
    bad = torch.nonzero(positions[1:] <= positions[:-1])
    if bad.numel():
        slot = int(bad[0])
        first, second = int(positions[slot]), int(positions[slot + 1])
        what = "duplicate" if first == second else "unsorted"
        raise ValueError(f"indices must be strictly increasing, got {what} {first}, {second} at slot {slot}")


def flip_(active: Tensor, positions: Tensor, slots: Tensor) -> tuple[Tensor, Tensor]:
    """Gives the flags at `slots`, increasing, the other value.

    Returns:
        Of each the position, int64, and whether it is set now.
    """
    if _native is None or not all(t.is_cpu and t.is_contiguous() for t in (active, positions, slots)):
        enters = ~active.index_select(0, slots)
        active.index_copy_(0, slots, enters)
        return positions.index_select(0, slots).long(), enters
    flipped, enters = torch.empty_like(slots), torch.empty(slots.numel(), dtype=torch.bool)
    where = (positions.data_ptr(), positions.element_size(), active.data_ptr(), active.numel())
    buffers = (slots.data_ptr(), slots.numel(), flipped.data_ptr(), enters.data_ptr())
    _native.flip(*where, *buffers, _threads_for(slots.numel()))
    if not active.is_inference():
        torch.autograd.graph.increment_version(active)
    return flipped, enters


def fingerprint_change(slots: Tensor, enters: Tensor) -> int:
    """What is added to a fingerprint, modulo 2^64, when slots enter A or leave it."""
    if _native is None or not (slots.is_cpu and enters.is_cpu):
        parts = _mix(_named(slots))
        return int(torch.where(enters, parts, -parts).sum())
    count = slots.numel()
    return _native.inspect_change(slots.data_ptr(), enters.data_ptr(), count, _threads_for(count))


def _threads_for(num_slots: int) -> int:
    """How many threads to use for single slots of B, which are read or written one by one."""
    return torch.get_num_threads() if num_slots >= 2048 else 1


def _mixed(positions: Tensor, active: Tensor) -> int:
    """The sum of a mixed-up number per element of B and one per slot of A.

    Sound positions are a set: their order adds nothing.
    """
    slots = torch.nonzero(active).flatten()
    return int(_mix(positions.long() + 1).sum()) + int(_mix(_named(slots)).sum())


def _named(slots: Tensor) -> Tensor:
    """Numbers that no position has: those are positive."""
    return -1 - slots


def _mix(numbers: Tensor) -> Tensor:
    mixed = numbers
    for factor in _MIX:
        mixed = mixed * factor
        mixed = mixed ^ (mixed >> 29)
    return mixed
