"""The manifest of a checkpoint: what belongs to it, with the size and SHA-256 of every file.

It is written last, so that a folder with a valid manifest is complete. It carries a digest of itself, and is
taken only in the one form that `Manifest.dump` gives it: no byte of it can be altered unnoticed.
"""

from __future__ import annotations

import hashlib
import json
import math
from dataclasses import asdict, dataclass
from typing import Any

# Raised when a key changes its meaning or goes.
FORMAT = 1
NAME = "manifest.json"
MAX_SIZE = 1 << 16


@dataclass(frozen=True)
class Manifest:
    """What a checkpoint consists of.

    Attributes:
        step: Steps taken.
        score: How good the run was then, larger is better, or None.
        files: Name → {"size": bytes, "sha256": digest}.
    """

    step: int
    score: float | None
    files: dict[str, dict[str, Any]]

    def dump(self) -> bytes:
        """The file."""
        content = {"format": FORMAT, **asdict(self)}
        return _dump({**content, "digest": hashlib.sha256(_dump(content)).hexdigest()})


def parse(content: bytes) -> Manifest:
    """The manifest that `dump` gave.

    Raises:
        ValueError: It is not one, of another format, or altered.
    """
    try:
        fields = json.loads(content)
        version = fields["format"]
        manifest = Manifest(fields["step"], fields["score"], fields["files"])
        is_sound = _is_plausible(manifest) and (version != FORMAT or manifest.dump() == content)
    except (ValueError, RecursionError, KeyError, TypeError, AttributeError):
        version, manifest, is_sound = None, None, False
    if manifest is None or not is_sound:
        raise ValueError("it is not a manifest, or it was altered")
    if version != FORMAT:
        raise ValueError(f"it has format {version}, this version of topkast reads {FORMAT}")
    return manifest


def _is_plausible(manifest: Manifest) -> bool:
    score = manifest.score
    has_score = score is None or (type(score) is float and math.isfinite(score))
    return (
        has_score
        and type(manifest.step) is int
        and all(type(file["size"]) is int and type(file["sha256"]) is str for file in manifest.files.values())
    )


def _dump(content: dict[str, Any]) -> bytes:
    return (json.dumps(content, indent=1, allow_nan=False) + "\n").encode()
