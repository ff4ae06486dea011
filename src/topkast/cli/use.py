"""`topkast eval`, `generate` and `export`: what a trained network is good for."""

from __future__ import annotations

import argparse
import dataclasses
import sys
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn

from topkast.text import stated
from topkast.train import trained
from topkast.train.export_forms import FORMS, SUFFIXES, export
from topkast.train.image_tasks import ImageTask, PhotoTask
from topkast.train.resolve import make_task
from topkast.train.sampling import generate
from topkast.train.sections import ENGINES
from topkast.train.task import Task
from topkast.train.trained import Trained


def add_eval(commands: Any) -> None:
    parser = commands.add_parser("eval", help="evaluate a trained network on held-out data")
    add_run(parser)
    parser.add_argument("--data", metavar="PATH", help="evaluate on the held-out part of this data instead")
    parser.set_defaults(run=run_eval)


def run_eval(options: argparse.Namespace) -> None:
    trained = load_run(options)
    task = _task(trained, options.data)
    print(f"step {trained.step:,}; {task.title}")
    if options.data is None and trained.quality is not None:
        print(f"held-out {stated(trained.quality, task.quality_name)} as recorded in training")
    quality = task.quality(trained.model, whole=True)
    print(f"held-out {stated(quality, task.quality_name)} {task.whole_name}")
    print(_speeds(trained, task))


def _task(trained: Trained, data: str | None) -> Task:
    """The run's task, or the same one with other data, seen as the network learned to see."""
    config = trained.config
    if data is not None:
        config = dataclasses.replace(config, data=dataclasses.replace(config.data, data=str(Path(data))))
    task = make_task(config)
    if task.network() != trained.network:
        raise ValueError(
            f"{data or config.data.data} does not fit the network, which takes {trained.inputs}, "
            f"not {task.inputs()}"
        )
    if isinstance(task, ImageTask | PhotoTask) and list(task.classes) != trained.inputs["classes"]:
        raise ValueError(f"the network knows the classes {trained.inputs['classes']}, got {task.classes}")
    if isinstance(task, ImageTask):
        task.mean, task.std = trained.inputs["mean"], trained.inputs["std"]
    return task


def _speeds(trained: Trained, task: Task) -> str:
    """Units per second, through the sparse kernels and of the same network dense, taking turns."""
    example = task.example()
    networks = {"as trained": trained.model}
    if trained.sparse is not None:
        networks["dense with zeros"] = trained.dense().eval()
    best = dict.fromkeys(networks, float("inf"))
    for _ in range(6):
        for name, model in networks.items():
            best[name] = min(best[name], _seconds(model, example))
    rates = [f"{task.units_per_step / best[name]:,.0f} {name}" for name in networks]
    return f"{task.unit} per second, best of 6 batches: " + ", ".join(rates)


@torch.no_grad()
def _seconds(model: nn.Module, example: Any) -> float:
    arguments = example if isinstance(example, tuple) else (example,)
    started = time.perf_counter()
    model(*arguments)
    return time.perf_counter() - started


def add_generate(commands: Any) -> None:
    parser = commands.add_parser("generate", help="let a trained network write text")
    add_run(parser)
    parser.add_argument("--prompt", default="", metavar="TEXT", help="text to continue")
    parser.add_argument(
        "--length", type=int, default=400, metavar="N", help="number of bytes or words to write (400)"
    )
    parser.add_argument(
        "--temperature",
        type=float,
        default=0.8,
        metavar="T",
        help="how random the text is; 0 takes the likeliest symbol (0.8)",
    )
    parser.add_argument("--top", type=int, metavar="K", help="draw from the K likeliest only")
    parser.add_argument(
        "--seed", type=int, default=0, metavar="N", help="seed; the same seed gives the same text (0)"
    )
    parser.set_defaults(run=run_generate)


def run_generate(options: argparse.Namespace) -> None:
    trained = load_run(options)
    if "symbols" not in trained.inputs:
        raise ValueError(f"{options.folder} is a run of {trained.config.data.task}: it writes no text")
    drawn = generate(
        trained.model,
        trained.encode(options.prompt) or trained.encode("\n"),
        window=trained.inputs["window"],
        memory=trained.inputs.get("memory"),
        length=options.length,
        temperature=options.temperature,
        top=options.top,
        seed=options.seed,
    )
    is_words = trained.inputs["symbols"] == "words"
    sys.stdout.write(options.prompt + " " * (is_words and options.prompt[-1:].strip() != ""))
    for piece in trained.symbols.pieces(drawn):
        sys.stdout.write(piece)
        sys.stdout.flush()
    print()


def add_export(commands: Any) -> None:
    parser = commands.add_parser("export", help="write a trained network to a file")
    add_run(parser, engine=False)
    parser.add_argument(
        "--format",
        choices=tuple(FORMS),
        default="safetensors",
        help="dense with zeros (safetensors, state_dict, onnx), or compressed: only weights in use",
    )
    parser.add_argument("--out", type=Path, metavar="FILE", help="the file (RUN/model.…)")
    parser.set_defaults(run=run_export)


def run_export(options: argparse.Namespace) -> None:
    trained = load_run(options)
    out = options.out or options.folder / f"model{SUFFIXES[options.format]}"
    what = export(trained, options.format, out)
    print(f"{out}: {what} ({out.stat().st_size / 1e6:.2f} MB, step {trained.step:,})")


def add_run(parser: argparse.ArgumentParser, *, engine: bool = True) -> None:
    parser.add_argument("folder", type=Path, metavar="RUN", help="folder of a run")
    parser.add_argument(
        "--checkpoint",
        default="last",
        metavar="NAME",
        help="checkpoint to take: last (default), best, or a name",
    )
    if engine:
        parser.add_argument("--engine", choices=ENGINES, help="kernels to use instead of the run's own")
        parser.add_argument("--threads", type=int, metavar="N", help="number of processor threads (all)")


def load_run(options: argparse.Namespace) -> Trained:
    """The network of the run; what must be known of it goes to standard error."""
    threads = getattr(options, "threads", None)
    if threads is not None:
        if threads < 1:
            raise ValueError(f"--threads must be at least 1, got {threads}")
        torch.set_num_threads(threads)
    loaded = trained.load(options.folder, options.checkpoint, engine=getattr(options, "engine", None))
    for note in loaded.notes:
        print(f"topkast {options.command}: {note}", file=sys.stderr)
    return loaded
