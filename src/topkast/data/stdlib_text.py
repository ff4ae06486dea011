"""Text that is on every machine with Python: the sources of the standard library."""

from __future__ import annotations

import sysconfig
from pathlib import Path

import torch
from torch import Tensor

from topkast.data.text import HELD_OUT_SHARE, is_held_out

_NOT_LIBRARY = {"site-packages", "dist-packages", "test", "tests", "idlelib", "__pycache__", "lib2to3"}


def stdlib_text(limit: int = 4_000_000) -> tuple[Tensor, Tensor]:
    """The standard library's sources as bytes: (training, held-out), held-out files apart.

    Args:
        limit: The most bytes of training text; held-out text is cut to a tenth of it.

    Raises:
        FileNotFoundError: This Python comes without its sources.
    """
    root = Path(sysconfig.get_paths()["stdlib"])
    parts: tuple[list[bytes], list[bytes]] = ([], [])
    sizes = [0, 0]
    limits = (limit, limit // HELD_OUT_SHARE)
    for path in sorted(root.rglob("*.py")):
        inside = path.relative_to(root)
        if _NOT_LIBRARY.intersection(inside.parts):
            continue
        held_out = is_held_out(inside.as_posix())
        if sizes[held_out] < limits[held_out]:
            parts[held_out].append(path.read_bytes())
            sizes[held_out] += len(parts[held_out][-1])
    if not parts[0] or not parts[1]:
        raise FileNotFoundError(
            f"no standard library sources in {root}: this Python comes without them; "
            "`topkast train images` needs none"
        )
    train, held_out_text = (
        torch.frombuffer(bytearray(b"".join(part)[:size]), dtype=torch.uint8)
        for part, size in zip(parts, limits, strict=True)
    )
    return train, held_out_text
