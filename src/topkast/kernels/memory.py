"""Asking the C library to keep freed memory for the next tensor."""

from __future__ import annotations

import ctypes
import sys

# From glibc's malloc.h.
_M_TRIM_THRESHOLD = -1
_M_MMAP_MAX = -4
_LARGEST = 2**31 - 1


def keep_freed_memory() -> bool:
    """Makes this process keep freed memory instead of handing it back to the system.

    glibc returns large tensors to the system as soon as they die; the next step gets them back one page fault
    at a time, which can cost as much as a sparse layer's arithmetic (about 1.5 ms per 4 MB on a virtual
    machine). It concerns every tensor of the process, dense or sparse. Resident memory then stays at its
    peak, and somewhat above it (a third in a two-layer network), since freed memory falls into pieces; hence
    it is for the application to decide. The `topkast` command line does it for itself.

    Returns:
        Whether it took effect. Only glibc has the setting.
    """
    if not sys.platform.startswith("linux"):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:  # another C library, such as musl
        return False
    return bool(mallopt(_M_MMAP_MAX, 0)) and bool(mallopt(_M_TRIM_THRESHOLD, _LARGEST))
