"""Batches made by threads ahead of time: in order, bounded, the same for any number of threads."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

Key = TypeVar("Key")
Value = TypeVar("Value")


def made_ahead(
    make: Callable[[Key], Value], batches: Iterable[Sequence[Key]], *, workers: int, ahead: int
) -> Iterator[list[Value]]:
    """What `make` gives for the keys of each batch.

    Threads and not processes: Pillow gives up the interpreter's lock while it decodes and resizes, which is
    nearly all of the work; results need no copying between processes; and a process that has used OpenMP, as
    torch does, cannot safely be forked.

    Args:
        make: Called in any thread, in any order; must depend on its key alone.
        batches: Keys; may be endless.
        workers: Threads; with 0 it is all made when it is asked for.
        ahead: How many batches may be in the making beside the one that is handed out.

    Raises:
        Whatever `make` does, when its batch is due.
    """
    if workers < 0 or ahead < 0:
        raise ValueError(f"`workers` and `ahead` must be 0 or more, got {workers} and {ahead}")
    if workers == 0:
        return ([make(key) for key in batch] for batch in batches)
    return _by_threads(make, batches, workers, ahead)


def _by_threads(
    make: Callable[[Key], Value], batches: Iterable[Sequence[Key]], workers: int, ahead: int
) -> Iterator[list[Value]]:
    pool = ThreadPoolExecutor(workers, thread_name_prefix="topkast-data")
    waiting: deque[list[Future[Value]]] = deque()
    try:
        for batch in batches:
            waiting.append([pool.submit(make, key) for key in batch])
            if len(waiting) > ahead:
                yield [future.result() for future in waiting.popleft()]
        while waiting:
            yield [future.result() for future in waiting.popleft()]
    finally:  # also when the caller stops in the middle
        pool.shutdown(cancel_futures=True)
