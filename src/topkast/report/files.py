"""Writing files all or nothing."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path


def write_whole(path: Path, content: bytes) -> None:
    """Writes a file so that a reader sees the old one or the new one, never half of either."""
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        os.chmod(name, 0o644)  # mkstemp makes it the owner's alone
        os.replace(name, path)
    except BaseException:
        os.unlink(name)
        raise
