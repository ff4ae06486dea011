"""`Config`: all of a run's options, from presets, from a TOML file and from flags, and back to TOML."""

from __future__ import annotations

import dataclasses
import json
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from topkast.core.distribution import nearest
from topkast.models.simple import POSITION_STD
from topkast.train.options import checked, rules, set_values
from topkast.train.sections import (
    SECTIONS,
    DataOptions,
    MethodOptions,
    ModelOptions,
    RunOptions,
    TrainOptions,
)

FORMAT = 1


@dataclass(frozen=True)
class Config:
    """All options of a run, by section."""

    data: DataOptions = field(default_factory=DataOptions)
    model: ModelOptions = field(default_factory=ModelOptions)
    method: MethodOptions = field(default_factory=MethodOptions)
    train: TrainOptions = field(default_factory=TrainOptions)
    run: RunOptions = field(default_factory=RunOptions)

    def with_values(self, values: Mapping[str, Mapping[str, Any]]) -> Config:
        """A copy with some options changed, by section.

        Raises:
            ValueError: A section or an option that is not there, or a bad value.
        """
        changed = {}
        for name, options in values.items():
            if name not in SECTIONS:
                raise ValueError(f"[{name}] is not a section; there are {nearest(name, SECTIONS)}")
            if not isinstance(options, Mapping):
                raise ValueError(f"{name} must be a section such as [{name}], got {options!r}")
            changed[name] = dataclasses.replace(getattr(self, name), **checked(SECTIONS[name], options, name))
        return dataclasses.replace(self, **changed)

    def to_toml(self) -> str:
        """The configuration as a file that gives it back."""
        lines = [f"format = {FORMAT}"]
        for name in SECTIONS:
            lines += ["", f"[{name}]"]
            lines += [f"{key} = {_toml(value)}" for key, value in set_values(getattr(self, name))]
        return "\n".join(lines) + "\n"


# Of what `to_toml` writes for every run: the first line, what each section must have for a run to go on, and
# the last line, so that a file that was cut anywhere lacks one of them.
_ALWAYS_WRITTEN = (
    "format", "data.task", "model.model", "method.method", "train.steps", "train.batch", "train.lr",
    "train.threads", "run.evaluate_every", "run.checkpoint_every", "run.tensorboard",
)  # fmt: skip
# What runs did before these were options, whatever a new run does by default.
_BEFORE: dict[str, dict[str, Any]] = {
    "method": {"penalty_form": "gradient", "reservoir": "stored"},
    "train": {"sparse_rate": "same", "whole_rate": False},
}
_WAY_OUT = "put the file back from a copy, or start a new run: checkpoints do not hold the options"


def section_of(option_name: str) -> str:
    """The section that has an option; names are unique over all of them.

    Raises:
        ValueError: None has.
    """
    known = {option: name for name, section in SECTIONS.items() for option in rules(section)}
    if option_name not in known:
        raise ValueError(f"{option_name!r} is not an option; there are {nearest(option_name, known)}")
    return known[option_name]


def read_config(path: Path, base: Config | None = None) -> Config:
    """A configuration from a TOML file; what it does not say is as in `base`.

    A file that version 0.1 wrote, for a run or for one of a comparison, means what it meant then.

    Raises:
        ValueError: Not TOML, of another format, or with something that is not an option.
        OSError: It cannot be read.
    """
    values = _parsed(path.read_bytes(), path)
    # Every file that a program wrote has the first two; what 0.2 writes has the third too.
    is_older = all(_has(values, name) for name in ("format", "run.tensorboard"))
    if not is_older or _has(values, "method.letter"):
        return _config(path, values, base)
    return _as_it_was(_config(path, values, (base or Config()).with_values(_BEFORE)))


def read_run_config(path: Path) -> Config:
    """The configuration that a run has written into its folder: one with everything filled in.

    Raises:
        ValueError: It is missing, empty or cut; or see `read_config`.
    """
    try:
        return run_config_of(path.read_bytes(), path)
    except FileNotFoundError:
        raise ValueError(f"{path} is missing; {_WAY_OUT}") from None


def run_config_of(content: bytes, path: Path) -> Config:
    """The same from the content of that file.

    Raises:
        ValueError: As for `read_run_config`; it names `path`.
    """
    try:
        values = _parsed(content, path)
    except ValueError as error:
        raise ValueError(f"{error}; {_WAY_OUT}") from None
    config = _config(path, values, Config().with_values(_BEFORE))  # first: a wrong name or value says more
    missing = [name for name in _ALWAYS_WRITTEN if not _has(values, name)]
    if missing:
        state = "is empty" if not values else "was cut or altered"
        raise ValueError(f"{path} {state}: it lacks {', '.join(missing)}; {_WAY_OUT}")
    return _as_it_was(config)


def _as_it_was(config: Config) -> Config:
    """What a run of an older version did where its file does not say, whatever is the default now.

    Up to version 0.2.0 a decoder's embedding began as small as its positions. Version 0.1 had one clock: A
    and B were chosen together, at every step by default.
    """
    if config.model.model == "decoder" and config.model.embedding_std is None:
        config = config.with_values({"model": {"embedding_std": POSITION_STD}})
    options = config.method
    if options.method != "topkast":
        return config
    every = options.refresh_every or 1
    before = {
        "refresh_every": every,
        "exchange_every": every,
        "exploration_rate": 1.0,
        "exploration_warmup": 0,
        "hysteresis": 1.0,
        "min_fan_in": 0,
        "min_fan_out": 0,
    }
    missing = {name: value for name, value in before.items() if getattr(options, name) is None}
    return config.with_values({"method": missing})


def _parsed(content: bytes, path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(content.decode())
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is not a TOML file: {error}") from None


def _config(path: Path, values: Mapping[str, Any], base: Config | None = None) -> Config:
    version = values.get("format", FORMAT)
    if type(version) is not int or version != FORMAT:
        raise ValueError(f"{path} has format {version!r}, this version of topkast reads format {FORMAT}")
    try:
        return (base or Config()).with_values({k: v for k, v in values.items() if k != "format"})
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


def _has(values: Mapping[str, Any], name: str) -> bool:
    section, _, key = name.rpartition(".")
    return key in (values.get(section, {}) if section else values)


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, tuple):
        return "[" + ", ".join(_toml(part) for part in value) + "]"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    return repr(value)
