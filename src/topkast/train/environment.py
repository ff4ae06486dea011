"""Where a run took place: what has to be the same for it to be repeated bit for bit."""

from __future__ import annotations

import os
import platform
import subprocess
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import torch

from topkast.core.ranks import together
from topkast.kernels import native
from topkast.kernels.machine import cpu_model


def environment() -> dict[str, Any]:
    """Versions, CPU, instruction set, threads, ranks, and the commit if the package lies in its checkout."""
    ranks = together()
    return {
        "topkast": metadata.version("topkast"),
        "commit": _commit(Path(__file__).resolve().parents[1]),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "safetensors": metadata.version("safetensors"),
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "cpu": cpu_model(),
        "cores": os.cpu_count(),
        "isa": native.isa(),
        "threads": torch.get_num_threads(),
        "ranks": 1 if ranks is None else ranks.count,
    }


def differences(before: dict[str, Any], now: dict[str, Any]) -> dict[str, tuple[Any, Any]]:
    """What is not as it was: name → (before, now). A run that goes on then may not do so bit for bit."""
    names = [*before, *(name for name in now if name not in before)]
    return {name: (before.get(name), now.get(name)) for name in names if before.get(name) != now.get(name)}


def _commit(package: Path) -> str | None:
    """The commit, with "+" if files were changed since; None if the package is not under version control."""
    if _git(package, "ls-files", "--error-unmatch", "__init__.py") is None:
        return None  # at most it lies inside somebody else's checkout
    commit = _git(package, "rev-parse", "HEAD")
    is_changed = bool(_git(package, "status", "--porcelain", "--untracked-files=no", "--", "."))
    return commit if commit is None else commit + "+" * is_changed


def _git(folder: Path, *arguments: str) -> str | None:
    command = ["git", "--no-optional-locks", "-C", str(folder), *arguments]  # nothing is written anywhere
    try:
        result = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return result.stdout.strip()
