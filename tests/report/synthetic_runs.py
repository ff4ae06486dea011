"""Run folders as the training loop writes them, made up: curves that fall, masks that settle."""

from __future__ import annotations

import json
import math
import random
from pathlib import Path
from typing import Any

PARTS = ("weight", "gradient", "optimizer", "sets", "plan", "reservoir", "companion")
NAMES = [
    f"blocks.{i}.{part}"
    for i in range(2)
    for part in ("attention.qkv", "attention.out", "mlp.up", "mlp.down")
]
CONFIG = """# the resolved configuration
[task]
name = "text"
window = 128

[method]
name = "topkast"
forward_sparsity = 0.9
backward_sparsity = 0.8
refresh_every = 10
"""
ENVIRONMENT = {
    "topkast": "0.1.0",
    "torch": "2.13.0",
    "python": "3.11.7",
    "cpu": "Made-up CPU @ 2.80GHz",
    "threads": 2,
    "engines": {"native": "avx2", "csr": None},
}

Event = dict[str, Any]


def start(
    name: str = "Top-KAST 90/80",
    layers: list[str] | None = None,
    steps: int = 400,
    density: float = 0.1,
    **other: Any,
) -> Event:
    numel = 384 * 128
    layer = {
        "shape": [384, 128],
        "numel": numel,
        "forward": round(density * numel),
        "backward": round(2 * density * numel),
        "engine": "native",
        "flops": {"sparse": 1.0e8, "dense": 8e8},
    }
    names = NAMES if layers is None else layers
    return {
        "event": "start",
        "run": name,
        "task": "text",
        "title": "1,000,000 bytes of made-up text, 50,000 held out",
        "quality_name": "bits per byte",
        "higher_is_better": False,
        "steps": steps,
        "parameters": {"used": round(density * 500_000) + 30_000, "dense": 530_000},
        "flops_per_step": {"sparse": (0.05 + 1.33 * density) * 9.1e9, "dense": 9.1e9},
        "layers": dict.fromkeys(names, layer),
        "unit": "tokens",
        "units_per_step": 2048,
        **other,
    }


def progress(step: int, layers: list[str] | None = None, floor: float = 2.4, speed: float = 0.064) -> Event:
    noise = random.Random(step)
    fallen = math.exp(-step / 120)
    names = NAMES if layers is None else layers
    return {
        "event": "progress",
        "step": step,
        "seconds": speed * step,
        "loss": 0.7 * (floor + 3.4 * fallen) + 0.04 * noise.random(),
        "quality": floor + 3.5 * fallen + 0.02 * noise.random(),
        "flops": 1.66e9 * step,
        "lr": 0.002,
        "layers": {name: _layer(step, i, noise) for i, name in enumerate(names)},
    }


def _layer(step: int, order: int, noise: random.Random) -> Event:
    spread = 0.6 + 0.8 * noise.random()
    used = 0.09 * (1 - math.exp(-step / 90)) * (0.7 + 0.07 * (order % 8))
    return {
        "changed": 0.02 * spread * math.exp(-step / 150),
        "used": used,
        "activated": 0.45 * used,
        "mean_a": 0.06 + 0.03 * (1 - math.exp(-step / 200)) + 0.003 * (order % 8),
        "mean_explored": 0.03 * math.exp(-step / 300) + 0.001 * (order % 8),
        "forward": 4915,
        "backward": 9830,
    }


def dense_progress(step: int, floor: float = 2.3, speed: float = 0.09) -> Event:
    return {**progress(step, [], floor, speed), "flops": 9.1e9 * step}


def reference(name: str = "dense", floor: float = 2.3, speed: float = 0.09, flops: float = 9.1e9) -> Event:
    points = [progress(step, [], floor, speed) for step in range(50, 401, 50)]
    return {
        "event": "reference",
        "run": name,
        "quality": points[-1]["quality"],
        "loss": points[-1]["loss"],
        "steps": 400,
        "seconds_per_step": speed,
        "bytes": 8_480_000 if name == "dense" else 2_100_000,
        "parameters": 530_000 if name == "dense" else 80_000,
        "curve": [[p["step"], p["seconds"], p["loss"], p["quality"], flops * p["step"]] for p in points],
    }


def end(layers: list[str] | None = None, step: int = 400, speed: float = 0.064, **other: Any) -> Event:
    sizes = dict(zip(PARTS, (39_320, 39_320, 78_640, 49_152, 58_980, 157_000, 0), strict=True))
    layer = {**sizes, "total": sum(sizes.values()), "dense": 786_432}
    names = NAMES if layers is None else layers
    sparse, dense = len(names) * layer["total"] + 480_000, len(names) * layer["dense"] + 480_000
    return {
        "event": "end",
        "step": step,
        "seconds_per_step": speed,
        "bytes": {"layers": dict.fromkeys(names, layer), "sparse": sparse, "dense": dense},
        "peak_rss": 345_678_901,
        "stopped": None,
        **other,
    }


def ordinary(layers: list[str] | None = None, **start_fields: Any) -> list[Event]:
    """A whole run with two references."""
    return [
        start(layers=layers, **start_fields),
        *(progress(step, layers) for step in range(20, 401, 20)),
        reference("fixed random mask", 2.7, 0.05, 1.66e9),
        reference(),
        end(layers),
    ]


def dense() -> list[Event]:
    counted = {"layers": {}, "sparse": 8_480_000, "dense": 8_480_000}
    first = start("dense", [], parameters={"used": 530_000, "dense": 530_000})
    first["flops_per_step"] = {"sparse": 9.1e9, "dense": 9.1e9}
    return [first, *(dense_progress(s) for s in range(50, 401, 50)), end([], speed=0.09, bytes=counted)]


def write(folder: Path, events: list[Event], tail: str = "") -> Path:
    """A run folder; `tail` is what a killed process left of its last line."""
    folder.mkdir(parents=True)
    lines = [json.dumps(event) for event in events]
    (folder / "metrics.jsonl").write_text("\n".join(lines) + "\n" + tail, encoding="utf-8")
    (folder / "config.toml").write_text(CONFIG, encoding="utf-8")
    (folder / "environment.json").write_text(json.dumps(ENVIRONMENT), encoding="utf-8")
    return folder
