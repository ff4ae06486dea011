"""Plain text as bytes, to learn and held out: of files and folders, or Python's own sources."""

from __future__ import annotations

import hashlib
import re
import sysconfig
from collections.abc import Iterable
from pathlib import Path

import torch
from torch import Tensor

from topkast.data.datasets import Packed
from topkast.data.labelled import IMAGE_SUFFIXES

HELD_OUT_SHARE = 10
_NOT_LIBRARY = {"site-packages", "dist-packages", "test", "tests", "idlelib", "__pycache__", "lib2to3"}


def is_held_out(name: str) -> bool:
    """Whether a file of this name is held out: one in ten, whatever else there is and however long it is."""
    return hashlib.sha256(name.encode()).digest()[0] % HELD_OUT_SHARE == 0


def read_text(path: Path, limit: int | None = None) -> tuple[Tensor, Tensor]:
    """The bytes of a file (its last tenth held out) or of all files of a folder (one in ten held out).

    Files ending in .gz, .xz and .bz2 are unpacked. Hidden files, and those of a folder that are not text, are
    left out.

    Args:
        path: A file or a folder.
        limit: The most bytes of training text; held-out text is cut to a ninth of it.

    Returns:
        (training, held-out), uint8.

    Raises:
        FileNotFoundError: There is no such file or folder, or no text in it.
        ValueError: The file is empty, damaged or not text.
    """
    if not path.exists():
        raise FileNotFoundError(f"{path} does not exist")
    enough = None if limit is None else limit + -(-limit // (HELD_OUT_SHARE - 1))
    if path.is_file():
        text = _read(path, enough)
        if not text:
            raise ValueError(f"{path} is empty")
        if _is_binary(text):
            way_out = _for_images(path, [path]) or "give a text file, or a folder of them"
            raise ValueError(f"{path} is not text: it has zero bytes; {way_out}")
        held_out = len(text) // HELD_OUT_SHARE
        return _tensor(text[: len(text) - held_out], limit), _tensor(text[len(text) - held_out :], None)
    return _read_folder(path, limit)


def _read_folder(folder: Path, limit: int | None) -> tuple[Tensor, Tensor]:
    parts: tuple[list[bytes], list[bytes]] = ([], [])
    for file in sorted(p for p in folder.rglob("*") if p.is_file()):
        inside = file.relative_to(folder)
        if any(part.startswith(".") for part in inside.parts):
            continue
        text = _read(file, limit)
        if text and not _is_binary(text):
            parts[is_held_out(inside.as_posix())].append(text)
    if not parts[0] and not parts[1]:
        way_out = _for_images(folder, (p for p in folder.rglob("*") if p.is_file()))
        raise FileNotFoundError(f"{folder} has no text files" + (way_out and f"; {way_out}"))
    if not parts[0] or not parts[1]:
        # Too few files for one in ten: cut each instead.
        whole = [*parts[0], *parts[1]]
        train = [text[: len(text) - len(text) // HELD_OUT_SHARE] for text in whole]
        parts = (train, [text[len(text) - len(text) // HELD_OUT_SHARE :] for text in whole])
    share = None if limit is None else max(1, limit // (HELD_OUT_SHARE - 1))
    return _tensor(b"".join(parts[0]), limit), _tensor(b"".join(parts[1]), share)


# What the files of MNIST and of CIFAR-10 are called.
_IMAGE_SETS = re.compile(r"idx[13]-ubyte|data_batch")


def _for_images(path: Path, files: Iterable[Path]) -> str:
    """The way out if there are images, else nothing."""
    has_images = any(file.suffix.lower() in IMAGE_SUFFIXES or _IMAGE_SETS.search(file.name) for file in files)
    return f"it has images: `topkast train images --data {path}`" if has_images else ""


def _read(path: Path, limit: int | None) -> bytes:
    with Packed(path).open() as file:
        return file.read() if limit is None else file.read(limit)


def _is_binary(text: bytes) -> bool:
    return b"\0" in text[: 1 << 20]


def _tensor(text: bytes, limit: int | None) -> Tensor:
    return (
        torch.frombuffer(bytearray(text[:limit]), dtype=torch.uint8)
        if text
        else torch.empty(0, dtype=torch.uint8)
    )


# ---- text that is on every machine with Python ----------------------------------------------------------


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
    return _tensor(b"".join(parts[0]), limits[0]), _tensor(b"".join(parts[1]), limits[1])


# ---- is it enough? -------------------------------------------------------------------------------------


def check_length(parts: Iterable[tuple[str, Tensor]], window: int, where: str) -> None:
    """Raises ValueError if a part is shorter than one window and the byte after it."""
    for name, text in parts:
        if len(text) <= window:
            raise ValueError(
                f"{where}: the {name} text has {len(text):,} bytes, fewer than one window of {window} "
                "and the byte after it; give more text or a smaller --window"
            )
