"""The parser of the command line: a mistake is one line, with the nearest name that there is."""

from __future__ import annotations

import argparse
import difflib
import sys
from collections.abc import Iterable, Sequence
from typing import Any, NoReturn


class Parser(argparse.ArgumentParser):
    """As argparse's, with errors of one line. Parsers of commands are of this class too."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message} (see `{self.prog} --help`)\n")

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is None or value in action.choices:
            return
        names = [str(choice) for choice in action.choices]
        what = "command" if isinstance(action, argparse._SubParsersAction) else action.metavar or action.dest
        hint = did_you_mean(str(value), names) or f"there are {', '.join(names)}"
        flags = "/".join(action.option_strings)
        self.error(f"{flags} has no {value!r}: {hint}" if flags else f"there is no {what} {value!r}: {hint}")

    def parse(self, words: Sequence[str] | None = None) -> argparse.Namespace:
        """As `parse_args`; a flag that is not known is named with the nearest one of its command."""
        words = sys.argv[1:] if words is None else words
        self._check_flags(words)
        options, left = self.parse_known_args(words)
        if left:
            self._add_to_list(options, left)
        return options

    def _add_to_list(self, options: argparse.Namespace, left: list[str]) -> None:
        """Adds words to the list a command takes: argparse ends such a list at the first flag behind it."""
        command = next((c for name, c in self._commands().items() if name == options.command), self)
        lists = [a.dest for a in command._actions if not a.option_strings and a.nargs in ("*", "+")]
        if not lists or any(word.startswith("-") for word in left):
            self.error(f"unrecognized arguments: {' '.join(left)}")
        getattr(options, lists[0]).extend(left)

    def _commands(self) -> dict[str, Parser]:
        for action in self._actions:
            if isinstance(action, argparse._SubParsersAction):
                return action.choices
        return {}

    def _check_flags(self, words: Sequence[str]) -> None:
        # Before all else: argparse would take what comes after such a flag for something else.
        commands = self._commands()
        known = [name for name in self._option_string_actions if name.startswith("--")]
        for index, word in enumerate(words):
            flag = word.partition("=")[0]
            if word == "--":
                return
            if word in commands:
                commands[word]._check_flags(words[index + 1 :])
                return
            if flag.startswith("--") and not any(name.startswith(flag) for name in known):
                hint = did_you_mean(flag, known)
                self.error(f"there is no flag {flag}" + (f": {hint}" if hint else ""))


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """A question for a name that is nearly one of those known; nothing if none is near."""
    close = difflib.get_close_matches(name, list(known), n=1, cutoff=0.5)
    return f"did you mean {close[0]}?" if close else ""
