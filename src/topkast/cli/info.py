"""`topkast info`: what is here: versions, the processor, engines, extras."""

from __future__ import annotations

import argparse
from importlib import metadata
from typing import Any

import torch

from topkast.kernels.engines import ENGINES
from topkast.kernels.machine import cpu_features
from topkast.train.folder import environment

# Package → what it is for.
_EXTRAS = {
    "matplotlib": "reports and figures",
    "rich": "the live bar",
    "scikit-learn": "the digits that `topkast train images` takes by default",
    "pillow": "image files",
    "onnx": "export --format onnx",
    "onnxscript": "export --format onnx",
    "onnxruntime": "checking what was exported to ONNX",
    "tensorboard": "train --tensorboard",
}


def add_parser(commands: Any) -> None:
    parser = commands.add_parser("info", help="versions, processor, engines, extras")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> None:
    here = environment()
    for name in ("topkast", "commit", "python", "torch", "numpy", "safetensors", "system", "cpu", "cores"):
        if here[name] is not None:
            print(f"{name:14}{here[name]}")
    print(f"{'threads':14}{torch.get_num_threads()}")
    print(f"{'features':14}{' '.join(cpu_features()) or 'unknown'}")
    print("engines")
    for name, engine in ENGINES.items():
        reason = engine.unavailable()
        print(f"  {name:14}{engine.about() if reason is None else f'not available: {reason}'}")
    print("extras")
    for package, purpose in _EXTRAS.items():
        print(f"  {package:14}{_version(package):14}{purpose}")


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "-"
