"""`topkast bench`: times, and memory, against dense PyTorch and the peers, in one run."""

from __future__ import annotations

import argparse
import inspect
import os
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from topkast.bench import plot
from topkast.bench.ratios import EQUAL_PAIRS, Pair
from topkast.bench.report import Report, environment, headline, read, write
from topkast.bench.suites import conv, dlmc, inference, linear, memory, select, step
from topkast.kernels.engines import ENGINES
from topkast.store.files import check_target
from topkast.train.session import Stopped

_SUITES: dict[str, Any] = {
    "linear": linear,
    "conv": conv,
    "step": step,
    "select": select,
    "memory": memory,
    "inference": inference,
    "dlmc": dlmc,
}
# Which suites an option is for; the others are for all.
_BELONGS = {
    "tokens": ("linear", "step", "memory", "inference", "dlmc"),
    "inputs": ("linear", "memory"),
    "outputs": ("linear", "memory"),
    "batch": ("conv", "step"),
    "model": ("step",),
    "width": ("step", "inference"),
    "depth": ("step", "inference"),
    "numel": ("select",),
    "sparsities": ("linear", "conv", "step", "memory", "inference", "dlmc"),
    "engines": ("linear", "conv"),
    "equal": ("linear",),
    "precision": ("linear",),
    "plot": ("linear",),
    "repeats": ("linear", "conv", "step", "select", "inference", "dlmc"),
    "profile": ("step",),
}
_SIZES = ("tokens", "inputs", "outputs", "batch", "width", "depth", "numel", "repeats")


def add_parser(commands: Any) -> None:
    parser = commands.add_parser("bench", help="measure against dense PyTorch and other libraries")
    parser.add_argument("--suite", choices=tuple(_SUITES), default="linear")
    for name, text in (
        ("tokens", "rows of the input"),
        ("inputs", "of one Linear layer, with --outputs, in place of the default shapes"),
        ("outputs", "see --inputs"),
        ("batch", "images"),
        ("width", "of the network"),
        ("depth", "blocks of it, or hidden layers"),
        ("numel", "how many numbers to choose from"),
        ("repeats", "rounds per measurement"),
    ):
        parser.add_argument(f"--{name}", type=int, metavar="N", help=_help(name, text))
    networks = f"{', '.join(step.MODELS)}; by default the first"
    parser.add_argument("--model", choices=step.MODELS, help=_help("model", networks))
    pairs = "such as 90/80,95/90: forward/backward, in per cent; 90 is 90/90"
    parser.add_argument("--sparsities", metavar="LIST", help=_help("sparsities", pairs))
    engines = f"of ours, with commas: {', '.join(_engine_names())}"
    parser.add_argument("--engines", metavar="LIST", help=_help("engines", engines))
    equal = "backward sparsity like forward, and the peers that are installed beside us"
    parser.add_argument("--equal", action="store_true", help=_help("equal", equal))
    dtypes = "bfloat16: dense and our engines under autocast besides, all against dense in float32"
    parser.add_argument("--precision", choices=("float32", "bfloat16"), help=_help("precision", dtypes))
    parts = "say where the time of each step goes"
    parser.add_argument("--profile", action="store_true", help=_help("profile", parts))
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every figure to this file")
    drawing = "draw speed-up against sparsity into this file (svg, png, pdf)"
    parser.add_argument("--plot", type=Path, metavar="FILE", help=_help("plot", drawing))
    stored = "take the figures from this file, written by --json, instead of measuring"
    parser.add_argument("--from", dest="stored", type=Path, metavar="FILE", help=f"{stored}; for --plot")
    sets = "run the suite once with each of these instruction sets: avx512, avx2, portable, with commas"
    parser.add_argument("--isa", metavar="LIST", help=sets)
    parser.set_defaults(run=run)


def _help(option: str, text: str) -> str:
    return f"{text} ({', '.join(_BELONGS[option])})"


def run(options: argparse.Namespace) -> None:
    _check(options)
    if options.stored is not None:
        plot.plot(read(options.stored), options.plot)
        return
    settings = _settings(options)
    if options.isa is not None:
        _run_each(options)
        return
    print(f"{headline(environment())}\n")
    report: Report = _SUITES[options.suite].run(settings, partial(print, flush=True))
    if options.json is not None:
        write(report, options.json)
    if options.plot is not None:
        plot.plot(report, options.plot)


_ISAS = ("avx512", "avx2", "portable")


def _run_each(options: argparse.Namespace) -> None:
    """Runs the suite once for each instruction set, in a process of its own: it is chosen when one starts."""
    names, target = options.isa.split(","), options.json
    for name in names:
        command = [sys.executable, "-m", "topkast", "bench", *_flags(options)]
        if target is not None:
            command += ["--json", str(target.with_name(f"{target.stem}-{name}{target.suffix}"))]
        environment = {**os.environ, "TOPKAST_ISA": name}
        if subprocess.run(command, env=environment, check=False).returncode != 0:
            raise Stopped(f"with TOPKAST_ISA={name} the suite failed, as said above")
        if name != names[-1]:
            print(flush=True)


def _flags(options: argparse.Namespace) -> list[str]:
    """The command line again, without --isa and --json."""
    flags = ["--suite", options.suite]
    for name in _BELONGS:
        value = getattr(options, name)
        if value is True:
            flags.append(f"--{name}")
        elif value:
            flags += [f"--{name}", str(value)]
    return flags


def _check(options: argparse.Namespace) -> None:
    """All that can be wrong with the options, before minutes of measuring."""
    for name in _SIZES:
        value = getattr(options, name)
        if value is not None and value < 1:
            raise ValueError(f"--{name} must be at least 1, got {value}")
    for name, suites in _BELONGS.items():
        if getattr(options, name) and options.suite not in suites:
            raise ValueError(f"--{name} is for the suite {' or '.join(suites)}, not for {options.suite}")
    if (options.inputs is None) != (options.outputs is None):
        raise ValueError("--inputs and --outputs make one shape: give both or none")
    wrong = [name for name in (options.isa or "").split(",") if name not in _ISAS]
    if options.isa is not None and wrong:
        raise ValueError(f"--isa must be one or more of {', '.join(_ISAS)}, with commas; got {wrong[0]!r}")
    if options.isa is not None and options.plot is not None:
        raise ValueError("--plot draws one run: leave out --isa, and set TOPKAST_ISA for another")
    if options.json is not None:
        check_target(options.json, "--json")
    if options.plot is not None:
        plot.check_plot(options.plot)
    if options.stored is not None and (options.plot is None or options.json is not None):
        raise ValueError("--from is for drawing what was measured before: give --plot with it, and no --json")


def _settings(options: argparse.Namespace) -> Any:
    """The suite's settings: its own defaults, except for what the options say."""
    cls: Callable[..., Any] = _SUITES[options.suite].Settings
    fields = set(inspect.signature(cls).parameters)
    given: dict[str, Any] = {
        name: getattr(options, name) for name in _SIZES if name in fields and getattr(options, name)
    }
    if options.inputs is not None:
        given["shapes"] = ((options.inputs, options.outputs),)
        given.update({name: () for name in ("large", "growing") if name in fields})  # not what was asked for
    if options.profile:
        given["profile"] = True
    if options.precision is not None:
        given["precision"] = options.precision
    if options.model is not None:
        given["model"] = options.model
    if options.tokens is not None and "rows" in fields:
        given["rows"] = (options.tokens,)
    if options.numel is not None:
        given["sizes"] = (options.numel,)
    if options.sparsities is not None:
        given["pairs"] = tuple(_pair(text) for text in options.sparsities.split(","))
    if options.equal:
        given = {"pairs": EQUAL_PAIRS, **given, "has_peers": True}
    if "engines" in fields:
        default = ("native",) if options.equal else cls().engines
        given["engines"] = _engines(options.engines, default)
    return cls(**given)


def _pair(text: str) -> Pair:
    """Forward and backward sparsity as shares, from "90/80" or "90"."""
    try:
        numbers = [float(part) / 100 for part in text.split("/")]
    except ValueError:
        numbers = []
    # A number between 0 and 1 is a share, as other commands take it, and not a part of a per cent.
    if len(numbers) not in (1, 2) or not all(number == 0 or 0.01 <= number < 1 for number in numbers):
        raise ValueError(f"--sparsities takes pairs in per cent such as 90/80,95/90, got {text!r}")
    if numbers[-1] > numbers[0]:
        raise ValueError(f"--sparsities: the backward sparsity is at most the forward sparsity, got {text!r}")
    return numbers[0], numbers[-1]


def _engine_names() -> tuple[str, ...]:
    return (*ENGINES, "auto")


def _engines(wanted: str | None, default: tuple[str, ...]) -> tuple[str, ...]:
    """The engines asked for, each of which must be usable; by default those that are."""
    names = default if wanted is None else tuple(wanted.split(","))
    for name in names:
        if name not in _engine_names():
            raise ValueError(f"--engines takes {', '.join(_engine_names())}, got {name!r}")
    reasons = {name: ENGINES[name].unavailable() for name in names if name in ENGINES}
    missing = {name: reason for name, reason in reasons.items() if reason is not None}
    usable = tuple(name for name in names if name not in missing)
    if missing and (wanted is not None or not usable):
        raise ValueError(f"engine {next(iter(missing))!r} cannot be used: {next(iter(missing.values()))}")
    return usable
