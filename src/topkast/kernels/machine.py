"""The processor we run on, as far as the system tells."""

from __future__ import annotations

import platform
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


def _first(field: str) -> str | None:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:  # not Linux
        return None
    return next(
        (line.partition(":")[2].strip() for line in lines if line.split(":")[0].strip() == field), None
    )
