"""A run's options as flags of a command."""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

from topkast.train.config import SECTIONS, Config, read_config
from topkast.train.options import Rule, rules
from topkast.train.preset_options import PRESET_NAMES, preset_values
from topkast.train.transfer import source_options

# Options that a run has, and that are no flags of their own name.
_HIDDEN = ("extended", "weights_from")
# What may be said of a run that goes on.
_CHANGEABLE = ("steps", "minutes", "patience", "reference", "device")
_TERMS = {
    "model": "xl stands for transformer-xl.",
    "method": "The forward pass uses the set A, the backward pass updates the larger set B.",
}
_TITLES = {"data": "data", "model": "network", "method": "sparsity", "train": "training", "run": "the run"}


def add_options(
    parser: argparse.ArgumentParser,
    *,
    without: Collection[str] = ("task",),
    more: Callable[[Any], None] | None = None,
) -> None:
    """Adds a flag for every option, by section.

    Args:
        parser: Of the command.
        without: Options that the command has in another form, or not at all.
        more: Adds what else belongs to the last section.
    """
    # All flags by name would fill a screen before the first line of help.
    for action in parser._actions:
        if not action.option_strings:
            name = str(action.metavar).upper().partition("[")[0]
            parser.usage = f"%(prog)s [{name}{' ...' if action.nargs == '*' else ''}] [--FLAG VALUE ...]"
    for name, section in SECTIONS.items():
        group = parser.add_argument_group(_TITLES[name], _TERMS.get(name))
        for option, rule in rules(section).items():
            if option not in (*without, *_HIDDEN):
                # A switch may be given alone.
                switch: dict[str, Any] = {"nargs": "?", "const": "true"} if rule.kind is bool else {}
                text = _help(section, option, rule)
                group.add_argument(_flag(option), metavar=_metavar(rule), help=text, **switch)
        if name == "run" and more is not None:
            more(group)


def add_preset(group: Any) -> None:
    """Adds the flags from which `configuration` begins."""
    names = ", ".join(PRESET_NAMES)
    group.add_argument("--preset", metavar="NAME", help=f"options to begin with: {names}")
    group.add_argument("--config", type=Path, metavar="FILE", help="options from a TOML file; flags win")


def configuration(options: argparse.Namespace) -> Config:
    """A preset, with what a file says, with what the flags say.

    Raises:
        ValueError: A name that is not there, or a bad value.
        OSError: The file cannot be read.
    """
    config, source = Config(), getattr(options, "weights_from", None)
    if source is not None and options.preset is None and options.config is None:
        config = source_options(Path(source))
    if options.preset is not None:
        config = config.with_values(preset_values(options.preset))
    if options.config is not None:
        config = read_config(options.config, config)
    values = given(options)
    if "steps" in values.get("train", {}):  # a run of another length has not been extended
        config = dataclasses.replace(config, train=dataclasses.replace(config.train, extended=None))
    return config.with_values(values)


def resumed_values(options: argparse.Namespace) -> dict[str, dict[str, Any]]:
    """What the flags change of a run that goes on, by section.

    Raises:
        ValueError: There is something else beside --resume; the flag is named.
    """
    values = given(options)
    flags = [_flag(option) for section in values.values() for option in section if option not in _CHANGEABLE]
    flags += [f"--{name}" for name in ("config", "preset", "out") if getattr(options, name)]
    flags = ["the task" if flag == "--task" else flag for flag in flags]
    if flags:
        may = ", ".join(map(_flag, _CHANGEABLE))
        raise ValueError(f"--resume takes everything from the run but {may}: leave out {', '.join(flags)}")
    return values


def check_resumed(options: argparse.Namespace, what: str, *others: object) -> None:
    """Raises ValueError if there is more beside --resume."""
    if given(options) or options.config or options.preset or options.out or any(others):
        raise ValueError(f"--resume takes everything from the {what}: give no other option with it")


def free_folder(stem: str) -> Path:
    """The next number in ``runs/``."""
    number = 1
    while (path := Path("runs") / f"{stem}-{number}").exists():
        number += 1
    return path


def given(options: argparse.Namespace) -> dict[str, dict[str, Any]]:
    """What the flags say, by section.

    Raises:
        ValueError: A value of another kind; the flag is named.
    """
    values: dict[str, dict[str, Any]] = {}
    if options.task is not None:
        values["data"] = {"task": options.task}
    for name, section in SECTIONS.items():
        for option, rule in rules(section).items():
            text = None if option == "task" else getattr(options, option, None)
            if text is None:
                continue
            try:
                values.setdefault(name, {})[option] = rule.check(rule.parse(text))
            except ValueError as error:
                raise ValueError(f"{_flag(option)} {error}") from None
    return values


def in_flags(message: str, options: argparse.Namespace) -> str:
    """A message with the flags that the user typed in place of the names of their options."""
    for name, section in SECTIONS.items():
        for option in rules(section):
            if option != "task" and getattr(options, option, None) is not None:
                for said in (f"{name}.{option}", f"`{option}`"):
                    message = message.replace(said, _flag(option))
    return message


def _flag(option: str) -> str:
    return "--from" if option == "weights_from" else "--" + option.replace("_", "-")


def _metavar(rule: Rule) -> str:
    if rule.metavar is not None:
        return rule.metavar
    return {int: "N", float: "X", str: "NAME", bool: "BOOL"}[rule.kind]


def _help(section: type, option: str, rule: Rule) -> str:
    default = getattr(section(), option)
    shown = ",".join(map(str, default)) if isinstance(default, tuple) else default
    text = rule.help if default in (None, (), False) else f"{rule.help} ({shown})"
    return text.replace("%", "%%")
