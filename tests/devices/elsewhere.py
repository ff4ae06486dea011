"""A device that is not the CPU, for machines that have no other one.

A tensor of it says that it is on "meta", holds its numbers on the CPU, and computes with them. What a real device
refuses is refused: an operation between its tensors and those of the CPU (but for tensors without dimensions), and
looking at their memory. So a line of code that forgets a `device=` or a `.cpu()` fails here as it would there; what
this cannot show is another device's arithmetic, speed and memory.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map

META = torch.device("meta")


class Elsewhere(Tensor):
    """A tensor on that device. `inner` holds the numbers."""

    inner: Tensor

    @staticmethod
    def __new__(cls, inner: Tensor) -> Elsewhere:
        place: dict[str, Any] = {}
        if inner.layout == torch.strided:
            place = {"strides": inner.stride(), "storage_offset": inner.storage_offset()}
        described = {"dtype": inner.dtype, "layout": inner.layout, "requires_grad": inner.requires_grad}
        return Tensor._make_wrapper_subclass(cls, inner.size(), device=META, **place, **described)

    def __init__(self, inner: Tensor) -> None:
        self.inner = inner

    def __repr__(self) -> str:  # pyright: ignore[reportIncompatibleMethodOverride]
        return f"Elsewhere({self.inner})"

    @property
    def data(self) -> Tensor:
        return self.detach()

    @data.setter
    def data(self, other: Elsewhere) -> None:
        Tensor.data.__set__(self, other)  # pyright: ignore[reportAttributeAccessIssue]
        self.inner = other.inner

    def tolist(self) -> Any:  # which torch has for its own type alone
        return self.inner.tolist()

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return dispatch(func, args, kwargs or {})


def dispatch(func: Any, args: Any, kwargs: Any) -> Any:
    """Computes on the CPU what is asked of the device, and says where the result is."""
    tensors = [a for a in tree_flatten((args, kwargs))[0] if isinstance(a, Tensor)]
    there = [t for t in tensors if isinstance(t, Elsewhere)]
    is_copy = func in (torch.ops.aten.copy_.default, torch.ops.aten._to_copy.default)
    here = [t for t in tensors if not isinstance(t, Elsewhere) and t.ndim > 0]
    if there and here and not is_copy:
        raise RuntimeError(f"{func}: expected all tensors to be on the same device, found meta and cpu")
    target = kwargs.get("device")
    to_device = bool(there) if target is None else torch.device(target) == META
    if func is torch.ops.aten.copy_.default:
        to_device = isinstance(args[0], Elsewhere)
    kwargs = {**kwargs, "device": torch.device("cpu")} if target is not None else kwargs
    plain_args, plain_kwargs = tree_map(lambda a: a.inner if isinstance(a, Elsewhere) else a, (args, kwargs))
    result = func(*plain_args, **plain_kwargs)
    given = {id(t.inner): t for t in there}  # what was changed in place stays the object it was

    def wrap(out: Any) -> Any:
        if not isinstance(out, Tensor) or not to_device:
            return out
        return given[id(out)] if id(out) in given else Elsewhere(out)

    return tree_map(wrap, result)


class WithDevice(TorchDispatchMode):
    """Within it `device="meta"` makes tensors of the device, also where no tensor is given."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return dispatch(func, args, kwargs or {})


def there(x: Tensor) -> Tensor:
    """The tensor on the device; a Parameter stays one."""
    if isinstance(x, nn.Parameter):
        return nn.Parameter(Elsewhere(x.detach().clone()), requires_grad=x.requires_grad)
    return Elsewhere(x.detach().clone())


def here(x: Tensor) -> Tensor:
    """The numbers, on the CPU."""
    assert isinstance(x, Elsewhere), f"{type(x)} is on the CPU"
    return x.inner.detach()
