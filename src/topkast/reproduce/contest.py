"""`topkast compare`: an experiment without a paper, on any configuration.

OUT/topkast-contest.json   says that this is ours, and which runs belong to it
configs/, NAME/        see `topkast.reproduce.farm`
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from topkast.core.distribution import nearest
from topkast.methods.named import METHODS
from topkast.reproduce.experiment import Experiment, Row
from topkast.reproduce.farm import Place, run_all
from topkast.reproduce.recipes import Recipe
from topkast.store.files import replace
from topkast.train.config import SECTIONS, Config, section_of
from topkast.train.options import rules
from topkast.train.resolve import make_method, make_task, resolve
from topkast.train.session import Stopped

MARKER = "topkast-contest.json"
FORMAT = 1


def contender(text: str) -> Row:
    """From ``METHOD[:FORWARD[/BACKWARD]][,OPTION=VALUE…]``, such as ``topkast:0.9/0.8,hysteresis=2``.

    Raises:
        ValueError: It is none of these.
    """
    head, *more = text.split(",")
    method, _, sparsities = head.partition(":")
    if method not in METHODS:
        raise ValueError(f"{text!r}: the method must be one of {nearest(method, METHODS)}")
    try:
        numbers = [float(part) for part in sparsities.split("/")] if sparsities else []
    except ValueError:
        numbers = []
    if bool(sparsities) != bool(numbers) or len(numbers) > 2 or (":" in head and not numbers):
        raise ValueError(f"{text!r} must be like topkast:0.9/0.8, rigl:0.9 or dense")
    forward, backward = [*numbers, None, None][:2]
    options = tuple(_option(text, part) for part in more)
    recipe = Recipe(method=method, forward=forward, backward=backward, options=options)
    words = [method, *(f"{number:g}" for number in numbers), *(f"{name}={value}" for name, value in options)]
    return Row("-".join(words), recipe)


# What a contender says in another form, or what all of a contest must share.
_NOT_ITS_OWN = ("task", "method", "forward_sparsity", "backward_sparsity", "seed", "reference")


def _option(text: str, part: str) -> tuple[str, Any]:
    """``NAME=VALUE`` of a contender, as its rule has it."""
    name, equals, value = part.partition("=")
    name = name.replace("-", "_")
    if not equals or name in _NOT_ITS_OWN:
        raise ValueError(f"{text!r}: what follows a comma must be OPTION=VALUE of `train`, got {part!r}")
    try:
        rule = rules(SECTIONS[section_of(name)])[name]
        return name, rule.check(rule.parse(value))
    except ValueError as error:
        raise ValueError(f"{text!r}: {name} {error}") from None


def plan(base: Config, contenders: Iterable[str], seeds: Iterable[int]) -> dict[str, Config]:
    """The runs, by name, with what each is told. All are checked.

    Raises:
        ValueError: A contender or a seed is given twice, or settings that its method does not have.
    """
    experiment = Experiment(name="compare", rows=tuple(map(contender, contenders)))
    pairs = experiment.runs(seeds)
    configs = {f"{row.label}-seed{seed}": run_config(base, row.recipe, seed) for row, seed in pairs}
    if len(configs) < len(pairs):
        raise ValueError("each contender and each seed can be given once only")
    if len(configs) < 2:
        raise ValueError(f"a comparison takes at least two runs, got {len(configs)}")
    check(base, configs)
    return configs


def check(base: Config, configs: Mapping[str, Config]) -> None:
    """Raises ValueError, with the name of the run, for settings that its method does not have."""
    task = make_task(base)
    for name, config in configs.items():
        try:
            make_method(resolve(config, task))
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from None


def run_config(base: Config, recipe: Recipe, seed: int) -> Config:
    """A recipe on a configuration that has all else."""
    method = dataclasses.replace(
        base.method,
        method=recipe.method,
        forward_sparsity=recipe.forward,
        backward_sparsity=recipe.backward,
    )
    train = dataclasses.replace(base.train, seed=seed)
    run = dataclasses.replace(base.run, reference=("none",))
    return dataclasses.replace(base, method=method, train=train, run=run).with_values(recipe.values())


def create(out: Path, configs: Mapping[str, Config]) -> None:
    """Makes the folder, with what each run is told.

    Raises:
        FileExistsError: There is something already.
    """
    if (out / MARKER).is_file():
        raise FileExistsError(
            f"{out} holds a comparison already: go on with --resume {out}, or choose another"
        )
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise FileExistsError(f"{out} is not an empty folder; choose another place with --out")
    for name, config in configs.items():
        _place(out, name).prepare(config)
    replace(out / MARKER, (json.dumps({"format": FORMAT, "runs": list(configs)}, indent=1) + "\n").encode())


def names(out: Path) -> list[str]:
    """The runs of a comparison.

    Raises:
        ValueError: It is not one of ours.
    """
    try:
        content = json.loads((out / MARKER).read_bytes())
        runs = content["runs"] if content["format"] == FORMAT else None
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        runs = None
    if not isinstance(runs, list) or not all(isinstance(n, str) and Path(n).name == n for n in runs):
        raise ValueError(f"{out} is not the folder of a comparison: it has no good {MARKER}")
    return runs


def go(out: Path, *, quiet: bool = False) -> int:
    """Runs what is not finished yet, one after another.

    Returns:
        0, or what the shell expects after a signal.

    Raises:
        Stopped: A run failed.
    """
    places = [_place(out, name) for name in names(out)]
    harvest = run_all(places, more=["--quiet"] if quiet else [], is_strict=True)
    if harvest.exit_code == 0 and harvest.failed:
        name, why = next(iter(harvest.failed.items()))
        raise Stopped(
            f"{name} {why}; go on with: topkast compare --resume {out}, or "
            f"leave it out: topkast report {out}/*/"
        )
    return harvest.exit_code


def _place(out: Path, name: str) -> Place:
    return Place(name, out / "configs" / f"{name}.toml", out / name)
