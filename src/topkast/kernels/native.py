"""Engine `native`: our own C++ kernels for the CPU. Cost follows density, in time and in memory.

The compiled core sees addresses and lengths; this file makes sure that they belong to contiguous CPU tensors
of the right type. See `native/sweep_impl.hpp` for how it works.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from topkast.kernels.csr import CSREngine
from topkast.kernels.engine import ConvGeometry, output_space
from topkast.kernels.plan import ActiveChange, Plan

try:
    from topkast.kernels import _native
except ImportError as error:  # reported by `unavailable`, where somebody asks for the engine
    _native = None
    _IMPORT_ERROR = str(error)
else:
    _IMPORT_ERROR = ""

# Up to so many tokens reading the weight takes the time, and its rows are read one after the other.
FEW = 8
# More columns than this do not fit into what `Rows` keeps of an element.
_MOST_COLUMNS = 2**16

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


def plan_sizes() -> dict[str, Any] | None:
    """The numbers on which the bytes of a compiled Plan depend, by name; None without the compiled core."""
    return None if _native is None else _native.plan_sizes()


def computes_bfloat16() -> bool:
    """Whether linear layers have kernels for bfloat16; else it is computed in float32, like float16."""
    return _native is not None and _native.has_bfloat16()


def _computed(x: Tensor) -> Tensor:
    """Contiguous, in a type the kernels have: half precision is computed in float32 and rounded once."""
    return x.contiguous() if x.dtype in _SUFFIX else x.float().contiguous()


def _linear_operands(*tensors: Tensor) -> tuple[str, list[Tensor]]:
    """What a linear layer computes with, contiguous, and the suffix of its functions in the compiled core."""
    if tensors[0].dtype == torch.bfloat16 and computes_bfloat16():
        return "bfloat16", [t.to(torch.bfloat16).contiguous() for t in tensors]
    computed = [_computed(t) for t in tensors]
    return _SUFFIX[computed[0].dtype], computed


def _summed(dtype: torch.dtype) -> torch.dtype:
    """What products of numbers of this type are added up in."""
    return torch.float32 if dtype == torch.bfloat16 else dtype


def _given(y: Tensor, dtype: torch.dtype) -> Tensor:
    """`y` in the dtype that was given; asked first, because even a cast to the same costs 10 to 25 µs."""
    return y if y.dtype == dtype else y.to(dtype)


def _buffer(x: Tensor | None) -> tuple[int, int]:
    return (0, 0) if x is None else (x.data_ptr(), x.numel())


@dataclass(frozen=True)
class _Compiled:
    """Something of the compiled core that was made of a Plan.

    Attributes:
        core: The compiled object.
        groups: Of a convolution, whose matrix has the columns of all groups.
    """

    core: Any
    groups: int = 1
    shape: tuple[int, int] = (0, 0)

    @property
    def num_bytes(self) -> int:
        return self.core.num_bytes

    def follow(self, change: ActiveChange) -> bool:
        return False


class _CompiledPlan(_Compiled):
    def follow(self, change: ActiveChange) -> bool:
        positions = _grouped(change.positions, *self.shape, self.groups)
        buffers = (change.slots.data_ptr(), positions.data_ptr(), change.enters.data_ptr())
        self.core.update(*buffers, change.slots.numel(), torch.get_num_threads())
        return True


class _CompiledTable(_Compiled):
    def follow(self, change: ActiveChange) -> bool:
        self.core.update(change.slots.data_ptr(), change.enters.data_ptr(), change.slots.numel())
        return True


def _plan(plan: Plan, geometry: ConvGeometry | None = None) -> Any:
    """The compiled Plan of a Plan; built, from a copy of the indices that is checked again, on first use.

    The matrix of a convolution with groups has the columns of all groups; a row's elements are in its own.
    """
    plan.require_valid()
    if geometry is None:
        key, groups, gathers = "native", 1, False
    else:
        groups, gathers = geometry.groups, gathers_input_grad(plan.shape[2:], geometry)
        key = f"native, {groups} groups, {'gathers' if gathers else 'scatters'}"
    made = plan.derived.get(key)
    if made is None:
        made = plan.derived[key] = _CompiledPlan(
            _new_plan(plan, groups, gathers), groups, (plan.num_rows, plan.num_columns)
        )
    return made.core  # pyright: ignore[reportAttributeAccessIssue]


def _new_plan(plan: Plan, groups: int, gathers: bool) -> Any:
    assert _native is not None  # `check_engine` has seen to it
    positions, active = plan.indices.contiguous(), plan.active.contiguous()
    if groups > 1:
        positions = _grouped(positions.long(), plan.num_rows, plan.num_columns, groups)
    return _native.Plan(
        num_rows=plan.num_rows,
        num_columns=plan.num_columns * groups,
        positions=positions.data_ptr(),
        index_bytes=positions.element_size(),
        active=active.data_ptr(),
        num_slots=plan.num_slots,
        explores=plan.explores,
        taps=math.prod(plan.shape[2:]),
        gathers=gathers,
        num_threads=torch.get_num_threads(),
    )


def gathers_input_grad(kernel: tuple[int, ...], g: ConvGeometry) -> bool:
    """Whether the input gradient is a convolution too: of dy with the kernel turned round."""
    reach = (d * (k - 1) for k, d in zip(kernel, g.dilation, strict=True))
    return set(g.stride) == {1} and all(p <= r for p, r in zip(g.padding, reach, strict=True))


def _table(plan: Plan) -> Any:
    """The compiled Table of a Plan, for embeddings; built on first use."""
    assert _native is not None  # `check_engine` has seen to it
    plan.require_valid()
    made = plan.derived.get("native table")
    if made is None:
        positions, active = plan.positions.contiguous(), plan.active.contiguous()
        buffers = (positions.data_ptr(), active.data_ptr(), plan.num_slots)
        core = _native.Table(plan.num_rows, plan.num_columns, *buffers, plan.explores)
        made = plan.derived["native table"] = _CompiledTable(core)
    return made.core  # pyright: ignore[reportAttributeAccessIssue]


def _rows(plan: Plan) -> Any:
    """The compiled Rows of a Plan, for few tokens; built on first use."""
    assert _native is not None  # `check_engine` has seen to it
    plan.require_valid()
    made = plan.derived.get("native rows")
    if made is None:
        positions, active = plan.indices.contiguous(), plan.active.contiguous()
        buffers = (positions.data_ptr(), positions.element_size(), active.data_ptr(), plan.num_slots)
        made = plan.derived["native rows"] = _Compiled(
            _native.Rows(plan.num_rows, plan.num_columns, *buffers)
        )
    return made.core  # pyright: ignore[reportAttributeAccessIssue]


def _grouped(positions: Tensor, num_rows: int, num_columns: int, groups: int) -> Tensor:
    """Positions in the matrix that has the columns of all groups."""
    if groups == 1:
        return positions
    rows, columns = positions // num_columns, positions % num_columns
    group = rows // (num_rows // groups)
    return (rows * groups + group) * num_columns + columns


def _sizes(plan: Plan, x: Tensor, geometry: ConvGeometry) -> tuple[int, ...]:
    """The sizes of a convolution as the compiled core wants them; in one dimension the height is 1."""

    def both(sizes: tuple[int, ...], filler: int) -> tuple[int, int]:
        return (sizes[0], sizes[1]) if len(sizes) == 2 else (filler, sizes[0])

    g = geometry
    space, kernel = tuple(x.shape[2:]), tuple(plan.shape[2:])
    if math.prod(kernel) == 1 and set(g.stride) == {1} and not any(g.padding):
        space, g = (math.prod(space),), ConvGeometry((1,), (0,), (1,), g.groups)  # pixels are just tokens
        kernel = (1,)
    out = output_space(space, kernel, g)
    return (
        *x.shape[:2],
        *both(space, 1),
        *both(out, 1),
        *both(kernel, 1),
        *both(g.stride, 1),
        *both(g.padding, 0),
        *both(g.dilation, 1),
    )


class NativeEngine(CSREngine):
    """Linear layers, convolutions and embedding lookups by our own kernels."""

    name, code, preference = "native", 3, 1  # it needs the least memory
    is_for_cpu = True

    def about(self) -> str:
        return f"compiled for {isa()}"

    def unavailable(self) -> str | None:
        return why_missing()

    def refusal(self, kind: str, geometry: ConvGeometry | None, device_type: str) -> str | None:
        if device_type != "cpu":
            return "native runs on the CPU"
        if kind == "conv" and geometry is not None and geometry.num_dims == 3:
            return "native has no 3-D convolution"
        return None

    def conv(
        self,
        plan: Plan,
        values: Tensor,
        x: Tensor,
        bias: Tensor | None,
        geometry: ConvGeometry,
    ) -> Tensor:
        dtype = x.dtype
        x, values = _computed(x), _computed(values)
        bias = None if bias is None else _computed(bias)
        space = output_space(tuple(x.shape[2:]), plan.shape[2:], geometry)
        y = torch.empty(x.shape[0], plan.num_rows, *space, dtype=x.dtype)
        function = getattr(_native, f"conv_{_SUFFIX[x.dtype]}")
        buffers = (*_buffer(values), *_buffer(x), *_buffer(bias), *_buffer(y))
        compiled = _plan(plan, geometry)
        function(compiled, _sizes(plan, x, geometry), *buffers, torch.get_num_threads())
        return _given(y, dtype)

    def conv_grads(
        self,
        plan: Plan,
        values: Tensor,
        x: Tensor,
        grad: Tensor,
        geometry: ConvGeometry,
        needs: tuple[bool, bool],
    ) -> tuple[Tensor | None, Tensor | None]:
        dtype = x.dtype
        x, values, grad = _computed(x), _computed(values), _computed(grad)
        input_grad, weight_grad = _empty_grads(plan, x, needs)
        function = getattr(_native, f"conv_backward_{_SUFFIX[x.dtype]}")
        buffers = (*_buffer(values), *_buffer(x), *_buffer(grad), *_buffer(input_grad), *_buffer(weight_grad))
        compiled = _plan(plan, geometry)
        function(compiled, _sizes(plan, x, geometry), *buffers, torch.get_num_threads())
        return _finished_grads(plan, input_grad, weight_grad, dtype)

    def linear(
        self, plan: Plan, values: Tensor, x: Tensor, bias: Tensor | None, *, transpose: bool
    ) -> Tensor:
        dtype = x.dtype
        suffix, (x, values) = _linear_operands(x, values)
        bias = None if bias is None else _computed(bias)
        outputs = plan.num_columns if transpose else plan.num_rows
        y = torch.empty(x.shape[0], outputs, dtype=x.dtype)
        function = getattr(_native, f"product_{suffix}")
        threads = torch.get_num_threads()
        buffers = (*_buffer(values), *_buffer(x), x.shape[0], *_buffer(bias), *_buffer(y))
        function(_plan(plan), transpose, *buffers, threads)
        return _given(y, dtype)

    def linear_alone(
        self, plan: Plan, values: Tensor, x: Tensor, bias: Tensor | None, *, transpose: bool
    ) -> Tensor:
        if transpose or x.shape[0] > FEW or plan.num_columns > _MOST_COLUMNS:
            return self.linear(plan, values, x, bias, transpose=transpose)
        dtype = x.dtype
        x, values = _computed(x), _computed(values)
        bias = None if bias is None else _computed(bias)
        y = torch.empty(x.shape[0], plan.num_rows, dtype=x.dtype)
        function = getattr(_native, f"few_{_SUFFIX[x.dtype]}")
        buffers = (*_buffer(values), *_buffer(x), x.shape[0], *_buffer(bias), *_buffer(y))
        function(_rows(plan), *buffers, torch.get_num_threads())
        return _given(y, dtype)

    def linear_grads(
        self,
        plan: Plan,
        values: Tensor,
        x: Tensor,
        grad: Tensor,
        needs: tuple[bool, bool, bool],
        *,
        transpose: bool,
    ) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        dtype = x.dtype
        suffix, (x, values, grad) = _linear_operands(x, values, grad)
        input_grad, weight_grad = _empty_grads(plan, x, needs[:2])
        bias_grad = torch.empty(grad.shape[1], dtype=_summed(x.dtype)) if needs[2] else None
        function = getattr(_native, f"backward_{suffix}")
        inputs = (*_buffer(values), *_buffer(x), *_buffer(grad), x.shape[0])
        outputs = (*_buffer(input_grad), *_buffer(weight_grad), *_buffer(bias_grad))
        function(_plan(plan), transpose, *inputs, *outputs, torch.get_num_threads())
        bias_grad = None if bias_grad is None else _given(bias_grad, dtype)
        return (*_finished_grads(plan, input_grad, weight_grad, dtype), bias_grad)

    def lookup(self, plan: Plan, values: Tensor, ids: Tensor) -> Tensor:
        numbers, ids = _computed(values), ids.contiguous()
        rows = torch.empty(ids.numel(), plan.num_columns, dtype=numbers.dtype)
        function = getattr(_native, f"lookup_{_SUFFIX[numbers.dtype]}")
        buffers = (*_buffer(numbers), *_buffer(ids), *_buffer(rows))
        function(_table(plan), *buffers, torch.get_num_threads())
        return _given(rows, values.dtype)

    def lookup_grad(self, plan: Plan, ids: Tensor, grad: Tensor) -> Tensor:
        numbers, ids = _computed(grad), ids.contiguous()
        values_grad = torch.empty(plan.num_slots, dtype=numbers.dtype)
        function = getattr(_native, f"lookup_grad_{_SUFFIX[numbers.dtype]}")
        buffers = (*_buffer(ids), *_buffer(numbers), *_buffer(values_grad))
        function(_table(plan), *buffers, torch.get_num_threads())
        return _given(values_grad, grad.dtype)


def _empty_grads(plan: Plan, x: Tensor, needs: tuple[bool, bool]) -> tuple[Tensor | None, Tensor | None]:
    """Room for the gradients that are wanted: like x, and one number per updated element."""
    return (
        torch.empty_like(x) if needs[0] else None,
        torch.empty(plan.num_updated, dtype=_summed(x.dtype)) if needs[1] else None,
    )


def _finished_grads(
    plan: Plan, input_grad: Tensor | None, weight_grad: Tensor | None, dtype: torch.dtype
) -> tuple[Tensor | None, Tensor | None]:
    return (
        None if input_grad is None else _given(input_grad, dtype),
        None if weight_grad is None else _spread(plan, _given(weight_grad, dtype)),
    )


def _spread(plan: Plan, entries: Tensor) -> Tensor:
    """From the updated elements to one number per slot of B, zero for the others."""
    if plan.explores:
        return entries
    return entries.new_zeros(plan.num_slots).masked_scatter_(plan.active, entries)
