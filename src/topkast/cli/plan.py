"""`topkast plan`: what training a network would take, sparse and dense, before anything is built."""

from __future__ import annotations

import argparse
import json
import re
import textwrap
from pathlib import Path
from typing import Any

from topkast.core.distribution import nearest
from topkast.cost.footprint import OPTIMIZERS
from topkast.cost.forecast import Forecast, forecast
from topkast.cost.show import WIDTH, Machines, data, notes, table
from topkast.methods.base import Method
from topkast.methods.named import METHODS, OPTIONS, Choice, named_method
from topkast.models.network import CATALOGUE, Entry
from topkast.store.files import check_target

_SIZES = {
    "width": "of the network; of its first stage for a resnet",
    "depth": "blocks",
    "heads": "of attention",
    "vocabulary": "symbols",
    "length": "symbols of a sequence",
    "classes": "outputs",
    "image_size": "pixels on a side",
}
_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}


def add_parser(commands: Any) -> None:
    parser = commands.add_parser("plan", help="foresee parameters, FLOPs, memory and traffic of a run")
    parser.add_argument("model", metavar="MODEL", help=", ".join(CATALOGUE))
    sizes = parser.add_argument_group("sizes of the model")
    sizes.add_argument("--sizes", metavar="N,N,…", help=_of("inputs, hidden sizes and outputs", "sizes"))
    for name, text in _SIZES.items():
        sizes.add_argument(_flag(name), type=int, metavar="N", help=_of(text, name))
    parser.add_argument(
        "--batch", type=int, default=32, metavar="N", help="examples per step and worker (32)"
    )
    _add_method(parser.add_argument_group("how it is trained"))
    machines = parser.add_argument_group("machines")
    machines.add_argument(
        "--workers", type=int, default=1, metavar="W", help="number of data-parallel workers (1)"
    )
    machines.add_argument("--link", type=float, metavar="G", help="Gbit/s that each worker can send")
    machines.add_argument("--memory", metavar="SIZE", help="memory of each worker, such as 16GB or 512MiB")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every figure to this file")
    parser.set_defaults(run=run)


def _add_method(group: Any) -> None:
    group.add_argument("--method", default="topkast", metavar="NAME", help=f"{', '.join(METHODS)} (topkast)")
    group.add_argument(
        "--forward-sparsity",
        type=float,
        metavar="S",
        help="share of weights that the forward pass leaves out (0.9)",
    )
    backward = "share that the backward pass leaves out (topkast; by default it uses twice the weights)"
    group.add_argument("--backward-sparsity", type=float, metavar="S", help=backward)
    group.add_argument(
        "--distribution",
        default="uniform",
        metavar="NAME",
        help="how sparsity is spread over layers: uniform, er or erk",
    )
    group.add_argument(
        "--budget",
        default="layers",
        help="the sparsity is that of: layers (of each, default) or model (all together)",
    )
    dense = "layers that stay dense: first, last, embeddings, with commas"
    group.add_argument("--keep-dense", default="", metavar="LIST", help=dense)
    group.add_argument("--optimizer", default="adam", metavar="NAME", help=f"{', '.join(OPTIMIZERS)} (adam)")
    group.add_argument("--reservoir", default="stored", help="stored (default) or implicit")
    share = "share of C that has been in B, for an implicit reservoir (0.05, as the paper reports)"
    group.add_argument("--returned", type=float, metavar="U", help=share)
    group.add_argument(
        "--steps", type=int, metavar="N", help="steps of the run, for its FLOPs and for schedules"
    )
    group.add_argument(
        "--refresh-every",
        type=int,
        metavar="N",
        help="choose the sets every N steps; for topkast, A within B",
    )
    # What the option above was called before.
    group.add_argument(
        "--exchange-every", type=int, metavar="N", help="choose B from all weights every N steps (topkast)"
    )
    group.add_argument("--update-every", dest="refresh_every", type=int, help=argparse.SUPPRESS)
    group.add_argument(
        "--begin", type=int, metavar="T", help="begin to prune at this step (a quarter of the run)"
    )
    end = "end the schedule at this step (rigl, pruning: three quarters; snfs: the end; topkast: never)"
    group.add_argument("--t-end", type=int, metavar="T", help=end)
    anneal = "start denser and get sparse along a curve: linear, cubic or cosine (topkast)"
    group.add_argument("--anneal", choices=("linear", "cubic", "cosine"), metavar="FORM", help=anneal)
    group.add_argument(
        "--anneal-from", type=float, metavar="S", help="forward sparsity at the start of that curve (0)"
    )
    until = "share of the run after which the curve ends (0.75)"
    group.add_argument("--anneal-until", type=float, metavar="SHARE", help=until)


def run(options: argparse.Namespace) -> None:
    if options.model not in CATALOGUE:
        raise ValueError(f"MODEL must be one of {nearest(options.model, CATALOGUE)}, got {options.model!r}")
    entry = CATALOGUE[options.model]
    machines = Machines(options.workers, options.link, _bytes(options.memory))
    returned = _returned(options)
    for name in ("batch", "steps"):
        value = getattr(options, name)
        if value is not None and value < 1:
            raise ValueError(f"--{name} must be at least 1, got {value}")
    if options.json is not None:
        check_target(options.json, "--json")
    method = named_method(options.method, _choice(options))
    sizes = {**entry.sizes, **_sizes(options, entry)}
    planned = forecast(
        *entry.build(options.batch, sizes),
        method,
        optimizer=options.optimizer,
        keep_dense=[word for word in options.keep_dense.split(",") if word],
        distribution=options.distribution,
        budget=options.budget,
        reservoir=options.reservoir,
        returned=0.05 if returned is None else returned,
        steps=options.steps,
    )
    print(_headline(options, entry, sizes, method, planned))
    print(f"\n{table(planned, machines)}\n")
    print("\n".join(notes(planned, method, machines, returned)))
    if options.json is not None:
        figures = {"model": options.model, "sizes": sizes, "batch": options.batch, "method": options.method}
        text = json.dumps({**figures, **data(planned, machines)}, indent=1)
        options.json.write_text(text + "\n", encoding="utf-8")


def _headline(
    options: argparse.Namespace, entry: Entry, sizes: dict[str, Any], method: Method, planned: Forecast
) -> str:
    chosen = ", ".join(f"{name.replace('_', ' ')} {_size_text(size)}" for name, size in sizes.items())
    pair = "/".join(f"{100 * s:g}" for s in (method.forward_sparsity, method.backward_sparsity))
    found = planned.survey
    unit = entry.unit if options.batch > 1 else entry.unit.removesuffix("s")
    lines = [
        f"{options.model} ({chosen}), {options.batch} {unit} per step and worker",
        f"{type(method).__name__} {pair} % sparse, {options.distribution}; {options.optimizer}; "
        f"{options.reservoir if method.fetches else 'no'} reservoir"
        + (f"; {options.steps:,} steps" if options.steps else ""),
        f"sparse: {len(found.weights)} weights",
    ]
    if found.left_dense:
        left = ", ".join(f"{name} ({why})" for name, why in list(found.left_dense.items())[:4])
        lines[-1] += f"; dense: {left}{', …' if len(found.left_dense) > 4 else ''}"
    return "\n".join(textwrap.fill(line, WIDTH, subsequent_indent="  ") for line in lines)


# ---- reading options ----------------------------------------------------------------------------------


def _choice(options: argparse.Namespace) -> Choice:
    return Choice(**{name: getattr(options, name, None) for name in OPTIONS}, steps=options.steps)


def _returned(options: argparse.Namespace) -> float | None:
    """The share for an implicit reservoir; None for a stored one."""
    if options.reservoir == "implicit":
        return 0.05 if options.returned is None else options.returned
    if options.returned is not None:
        raise ValueError("--returned is for --reservoir implicit: a stored one has all of C")
    return None


def _sizes(options: argparse.Namespace, entry: Entry) -> dict[str, Any]:
    """The sizes that were given, each of which the model must have."""
    given: dict[str, Any] = {name: getattr(options, name) for name in _SIZES}
    given["sizes"] = None if options.sizes is None else _list(options.sizes)
    given = {name: size for name, size in given.items() if size is not None}
    for name in given:
        if name not in entry.sizes:
            takes = ", ".join(_flag(size) for size in entry.sizes)
            raise ValueError(f"{_flag(name)} is no size of {options.model}: it takes {takes}")
    return given


def _list(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise ValueError(
            f"--sizes takes whole numbers with commas such as 784,512,10, got {text!r}"
        ) from None


def _bytes(text: str | None) -> int | None:
    """Bytes, from a number with a unit: kB, MB, GB, TB, or KiB and so on for powers of 1024."""
    if text is None:
        return None
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([kmgt]?)(i?)b?\s*", text, flags=re.IGNORECASE)
    if match is None or (match[3] and not match[2]):
        raise ValueError(f"--memory takes a size such as 16GB, 1.5TB or 512MiB, got {text!r}")
    unit = _UNITS[match[2].lower()]
    power = {10**3: 1, 10**6: 2, 10**9: 3, 10**12: 4}.get(unit, 0)
    return round(float(match[1]) * (1024**power if match[3] else unit))


def _of(text: str, size: str) -> str:
    return f"{text} ({', '.join(name for name, entry in CATALOGUE.items() if size in entry.sizes)})"


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def _size_text(size: int | tuple[int, ...]) -> str:
    return ",".join(map(str, size)) if isinstance(size, tuple) else str(size)
