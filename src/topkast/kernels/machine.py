"""What this machine is, and how a process keeps the memory it has freed."""

from __future__ import annotations

import ctypes
import platform
import resource
import sys
from pathlib import Path

# Instructions that our kernels, or torch's, are compiled for.
_FEATURES = (
    "sse4_2", "avx", "avx2", "fma", "f16c", "avx512f", "avx512dq", "avx512vl", "avx512_bf16", "amx_bf16",
    "asimd", "sve",
)  # fmt: skip


def cpu_model() -> str:
    """Its name, as the maker gives it; "unknown" where the system does not tell."""
    return _first("model name") or platform.processor() or "unknown"


def cpu_features() -> list[str]:
    """Those instructions it has that matter here."""
    flags = (_first("flags") or _first("Features") or "").split()
    return [feature for feature in _FEATURES if feature in flags]


def resident(key: str) -> int:
    """A figure of this process's memory in bytes: "VmRSS" now, "VmHWM" at its peak. Linux only.

    Raises:
        OSError: The system has no such file.
    """
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith(f"{key}:"))


def peak_memory() -> int:
    """The most memory that this process has had, in bytes.

    On Linux not from getrusage: what that gives begins with the memory of whoever started the process.
    """
    try:
        return resident("VmHWM")
    except OSError:
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else 1024 * peak


def _first(field: str) -> str | None:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:  # not Linux
        return None
    return next(
        (line.partition(":")[2].strip() for line in lines if line.split(":")[0].strip() == field), None
    )


# ---- memory that is kept -------------------------------------------------------------------------------

# From glibc's malloc.h.
_M_TRIM_THRESHOLD = -1
_M_MMAP_MAX = -4
_LARGEST = 2**31 - 1


def keep_freed_memory() -> bool:
    """Makes this process keep freed memory instead of handing it back to the system.

    glibc returns large tensors to the system as soon as they die. The next step gets them back one page fault
    at a time. That can cost as much as a sparse layer's arithmetic: about 1.5 ms per 4 MB on a virtual
    machine. It concerns every tensor of the process, dense or sparse. With this setting resident memory stays
    at its peak and somewhat above it (a third in a two-layer network), since freed memory falls into pieces.
    So the application has to decide. The `topkast` command line does it for itself.

    Returns:
        Whether it took effect. Only glibc has the setting.
    """
    if not sys.platform.startswith("linux"):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:  # another C library, such as musl
        return False
    return bool(mallopt(_M_MMAP_MAX, 0)) and bool(mallopt(_M_TRIM_THRESHOLD, _LARGEST))
