"""`Ranks`: processes that train one model together. Whatever is said to other processes is said here.

Every method is collective: all ranks call it, in the same order.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import Tensor

# A process group, None for all processes there are, or "alone" for a model that no other process trains.
Group = Any | Literal["alone"] | None
# While the first rank evaluates or writes, the others wait. One that has died is noticed at once.
_PATIENCE = timedelta(hours=12)


class Ranks:
    """The members of a process group.

    Attributes:
        count: How many there are.
        rank: Which of them this process is, from 0.
    """

    def __init__(self, group: Any = None) -> None:
        self._group = group
        self.count: int = dist.get_world_size(group)
        self.rank: int = dist.get_rank(group)

    @property
    def is_first(self) -> bool:
        return self.rank == 0

    def mean_(self, tensor: Tensor) -> Tensor:
        """The mean over ranks, in place; the same bits on each. `tensor` is contiguous."""
        with _waiting():
            dist.all_reduce(tensor, group=self._group)
        return tensor.div_(self.count)

    def gather(self, tensor: Tensor) -> list[Tensor]:
        """The tensors of all ranks, which have one shape, by rank."""
        everyone = [torch.empty_like(tensor) for _ in range(self.count)]
        with _waiting():
            dist.all_gather(everyone, tensor.contiguous(), group=self._group)
        return everyone

    def largest(self, numbers: list[int], device: torch.device | str = "cpu") -> list[int]:
        """The largest of each number over ranks."""
        tensor = torch.tensor(numbers, dtype=torch.int64, device=device)
        with _waiting():
            dist.all_reduce(tensor, op=dist.ReduceOp.MAX, group=self._group)
        return tensor.tolist()

    def from_first(self, thing: Any) -> Any:
        """What the first rank has; others may give anything. For plain data and tensors."""
        box = [thing if self.is_first else None]
        dist.broadcast_object_list(box, src=self._first, group=self._group)
        return box[0]

    def tensor_from_first(self, tensor: Tensor) -> Tensor:
        """The content that the first rank has, in place; shapes and types are the same."""
        dist.broadcast(tensor, src=self._first, group=self._group)
        return tensor

    @property
    def _first(self) -> int:
        """The first rank of the group, as numbered among all processes."""
        return 0 if self._group is None else dist.get_global_rank(self._group, 0)


@contextmanager
def _waiting() -> Iterator[None]:
    """Says what it means when the others do not answer."""
    try:
        yield
    except RuntimeError as error:
        raise RuntimeError(
            "a rank waited for the others in vain: one has ended, or does something else. All ranks must "
            "take the same number of steps, so give each the same number of batches (DistributedSampler, "
            f"drop_last). What was reported: {error}"
        ) from error


def together(group: Group = None) -> Ranks | None:
    """The ranks that train one model, or None where this process trains it alone."""
    if group == "alone" or not dist.is_available() or not dist.is_initialized():
        return None
    ranks = Ranks(group)
    return ranks if ranks.count > 1 else None


@contextmanager
def joined(attempt: str = "") -> Iterator[Ranks]:
    """All processes that were told of each other by environment variables, as torchrun does it, over gloo.

    Args:
        attempt: The same on all ranks and another at each try, where one place to meet serves several: the
            addresses that the dead have left there would be called otherwise.
    """
    from torch.distributed.distributed_c10d import PrefixStore
    from torch.distributed.rendezvous import rendezvous

    store, rank, count = next(rendezvous("env://", timeout=_PATIENCE))
    store = PrefixStore(f"topkast/{attempt}", store)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=count, timeout=_PATIENCE)
    try:
        yield Ranks()
        # Nobody hangs up on a rank that has not finished. One that is gone already is not waited for.
        with suppress(RuntimeError):
            dist.barrier()
    finally:
        dist.destroy_process_group()


def check_alone(what: str, ranks: Ranks | None) -> None:
    """Raises where several processes train one model.

    Raises:
        RuntimeError: They do.
    """
    if ranks is not None:
        raise RuntimeError(
            f"{what} within one process only: {ranks.count} processes are training here; "
            "use one process, or a method whose sizes follow from the step, such as TopKAST with "
            "scope='layer'. "
            'If each process trains a model of its own, say so: `attach(optimizer, process_group="alone")`'
        )
