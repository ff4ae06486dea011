"""Engine `native`: our own C++ kernels for the CPU. Cost follows density, in time and in memory.

The compiled core sees addresses and lengths; this file makes sure that they belong to contiguous CPU tensors
of the right type. See `native/kernels_impl.hpp` for how it works.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from topkast.kernels.csr import CSREngine
from topkast.kernels.engine import ConvGeometry
from topkast.kernels.plan import Plan

try:
    from topkast.kernels import _native
except ImportError as error:  # reported by `unavailable`, where somebody asks for the engine
    _native = None
    _IMPORT_ERROR = str(error)
else:
    _IMPORT_ERROR = ""

_SUFFIX = {torch.float32: "float", torch.float64: "double"}


def why_missing() -> str | None:
    """What is wrong with the compiled core and how to get it, or None if it is there."""
    if _native is not None:
        return None
    return (
        f"the compiled core is missing ({_IMPORT_ERROR}); install topkast with a C++17 compiler that has "
        "OpenMP (g++) on the machine: `pip install .` in its source folder builds it"
    )


def isa() -> str | None:
    """The instruction set the kernels use: "avx512", "avx2" or "portable"; None without a compiled core."""
    return None if _native is None else _native.isa()


def is_present(device: torch.device) -> bool:
    """Whether the compiled core is there and can work on this device."""
    return _native is not None and device.type == "cpu"


def can_select(numbers: Tensor) -> bool:
    """Whether `top_k` takes this tensor."""
    return is_present(numbers.device) and numbers.dtype in _SUFFIX


def top_k(numbers: Tensor, k: int) -> Tensor:
    """Positions of the k largest |numbers|, ties to the smaller position, increasing. O(n), threaded."""
    numbers = numbers.detach().contiguous()
    out = torch.empty(k, dtype=torch.int64)
    select = getattr(_native, f"top_k_{_SUFFIX[numbers.dtype]}")
    select(numbers.data_ptr(), numbers.numel(), k, out.data_ptr(), k, torch.get_num_threads())
    return out


def match(before: Tensor, after: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """See `core.select.match`: the same in one pass over both lists."""
    assert _native is not None  # `is_present` was asked
    source, entering = torch.empty_like(after), torch.empty_like(after)
    leaving = torch.empty_like(before)
    buffers = (before.contiguous(), after.contiguous(), source, entering, leaving)
    num_entering, num_leaving = _native.match(*(n for b in buffers for n in _buffer(b)))
    return source, entering[:num_entering].clone(), leaving[:num_leaving].clone()


def _computed(x: Tensor) -> Tensor:
    """Contiguous, in a type the kernels have: half precision is computed in float32 and rounded once."""
    return x.contiguous() if x.dtype in _SUFFIX else x.float().contiguous()


def _buffer(x: Tensor | None) -> tuple[int, int]:
    return (0, 0) if x is None else (x.data_ptr(), x.numel())


def _plan(plan: Plan) -> Any:
    """The compiled Plan of a Plan; built, and its indices checked again, on first use."""
    assert _native is not None  # `check_engine` has seen to it
    compiled: Any = plan.derived.get("native")
    if compiled is None:
        positions, active = plan.positions.contiguous(), plan.active.contiguous()
        compiled = _native.Plan(
            num_rows=plan.num_rows,
            num_columns=plan.num_columns,
            positions=positions.data_ptr(),
            index_bytes=positions.element_size(),
            active=active.data_ptr(),
            num_slots=plan.num_slots,
            explores=plan.explores,
            num_threads=torch.get_num_threads(),
        )
        plan.derived["native"] = compiled
    return compiled


class NativeEngine(CSREngine):
    """Linear layers by our kernels; embedding lookups are those of `csr`, on stored elements only."""

    name = "native"

    def unavailable(self) -> str | None:
        return why_missing()

    def refusal(self, kind: str, geometry: ConvGeometry | None, device_type: str) -> str | None:
        if device_type != "cpu":
            return "native runs on the CPU"
        return "native has no convolution" if kind == "conv" else None

    def linear(
        self, plan: Plan, values: Tensor, x: Tensor, bias: Tensor | None, *, transpose: bool
    ) -> Tensor:
        dtype = x.dtype
        x, values = _computed(x), _computed(values)
        bias = None if bias is None else _computed(bias)
        outputs = plan.num_columns if transpose else plan.num_rows
        y = torch.empty(x.shape[0], outputs, dtype=x.dtype)
        function = getattr(_native, f"product_{_SUFFIX[x.dtype]}")
        threads = torch.get_num_threads()
        buffers = (*_buffer(values), *_buffer(x), x.shape[0], *_buffer(bias), *_buffer(y))
        function(_plan(plan), transpose, *buffers, threads)
        return y.to(dtype)

    def linear_grads(
        self,
        plan: Plan,
        values: Tensor,
        x: Tensor,
        grad: Tensor,
        needs: tuple[bool, bool],
        *,
        transpose: bool,
    ) -> tuple[Tensor | None, Tensor | None]:
        dtype = x.dtype
        x, values, grad = _computed(x), _computed(values), _computed(grad)
        input_grad = torch.empty_like(x) if needs[0] else None
        weight_grad = torch.empty(plan.updated_positions.numel(), dtype=x.dtype) if needs[1] else None
        function = getattr(_native, f"backward_{_SUFFIX[x.dtype]}")
        inputs = (*_buffer(values), *_buffer(x), *_buffer(grad), x.shape[0])
        threads = torch.get_num_threads()
        function(_plan(plan), transpose, *inputs, *_buffer(input_grad), *_buffer(weight_grad), threads)
        if input_grad is not None:
            input_grad = input_grad.to(dtype)
        if weight_grad is not None:
            weight_grad = _spread(plan, weight_grad.to(dtype))
        return input_grad, weight_grad


def _spread(plan: Plan, entries: Tensor) -> Tensor:
    """From the updated elements to one number per slot of B, zero for the others."""
    if plan.updated_slots is None:
        return entries
    return entries.new_zeros(plan.num_slots).index_copy_(0, plan.updated_slots, entries)
