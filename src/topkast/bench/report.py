"""What a run leaves behind: every figure with the machine, the threads and the versions it belongs to."""

from __future__ import annotations

import json
import os
import platform
from dataclasses import asdict, dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from topkast.bench.peers import PEERS
from topkast.kernels import native
from topkast.kernels.machine import cpu_model
from topkast.store.files import check_target, replace

# Raised when a key changes its meaning or goes.
FORMAT = 1


def environment() -> dict[str, Any]:
    """Where the figures come from: CPU, threads, instruction set, versions."""
    return {
        "cpu": cpu_model(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "isa": native.isa(),
        "dtype": "float32",
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "torch": torch.__version__,
        "topkast": metadata.version("topkast"),
        "peers": {peer.name: peer.version() for peer in PEERS if peer.missing() is None},
    }


@dataclass
class Report:
    """The figures of one suite.

    Attributes:
        suite: Which one.
        options: What it was asked to measure.
        rows: One record per figure; the keys depend on the suite.
        overall: Over all shapes, by contender and pair of sparsities: the geometric mean of the ratios, or
            the ratio of summed times (suite `conv`).
        versus_peers: Ours against the fastest peer.
        break_even: Per shape, and of the mean, the sparsity from which on sparse is faster.
        left_out: Who was not measured, and why.
        environment: See `environment`.
    """

    suite: str
    options: dict[str, Any]
    rows: list[dict[str, Any]] = field(default_factory=list)
    overall: list[dict[str, Any]] = field(default_factory=list)
    versus_peers: list[dict[str, Any]] = field(default_factory=list)
    break_even: list[dict[str, Any]] = field(default_factory=list)
    left_out: dict[str, str] = field(default_factory=dict)
    environment: dict[str, Any] = field(default_factory=environment)


def headline(env: dict[str, Any]) -> str:
    """The environment in one line."""
    return (
        f"{env['cpu']}, {env['threads']} threads, {env['isa'] or 'no compiled core'}, {env['dtype']}, "
        f"torch {env['torch']}, topkast {env['topkast']}"
    )


def write(report: Report, path: Path) -> None:
    """Writes the report as JSON, all or nothing: a reader never sees half a file."""
    check_target(path, "--json")
    text = json.dumps({"format": FORMAT, **asdict(report)}, indent=1, ensure_ascii=False, allow_nan=False)
    replace(path, (text + "\n").encode())


def read(path: Path) -> Report:
    """A report that `write` has written.

    Raises:
        ValueError: It is not one, or of another format.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        found = content.pop("format")
        if found != FORMAT:
            raise ValueError(f"{path} has format {found}, this version of topkast reads {FORMAT}")
        return Report(**content)
    except (json.JSONDecodeError, UnicodeDecodeError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{path} is not a report that `topkast bench --json` wrote ({error})") from error
