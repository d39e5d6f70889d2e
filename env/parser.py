"""The argument parser of all commands: argparse with one of its bugs fixed, and with "did you mean"."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any, NoReturn

from ipex_assist.env.options import suggestion

SHORTEST = 3  # letters of a flag that is taken for the beginning of a longer one


class ArgumentParser(argparse.ArgumentParser):
    """Takes `--prompt=--` as the prompt "--", and refuses `--seed=--` as not a number.

    Until Python 3.12 argparse takes that "--" for the end of the options, and gives the option an empty list.
    """

    def _get_values(self, action: argparse.Action, arg_strings: list[str]) -> Any:
        if action.option_strings and action.nargs is None and arg_strings == ["--"]:
            value = self._get_value(action, "--")
            self._check_value(action, value)
            return value
        return super()._get_values(action, arg_strings)

    def parse_args(self, args: Sequence[str] | None = None, namespace: Any = None) -> Any:  # type: ignore[override]
        """Parse all words; exit with code 2, and with the flag that may have been meant, where one is unknown."""
        parsed, words = self.parse_known_args(args, namespace)
        if words:
            self.refuse(words)
        return parsed

    def refuse(self, words: Sequence[str]) -> NoReturn:
        """Exit because of words that are no arguments, with the flag that the first of them is similar to."""
        flags = [word.partition("=")[0] for word in words if word.startswith("--") and len(word) > len("--")]
        self.error(f"unrecognized arguments: {' '.join(words)}{self._meant(flags[0]) if flags else ''}")

    def _meant(self, flag: str) -> str:
        """ " (did you mean …?)" for a flag that does not exist. Hidden flags are not suggested."""
        shown = [each for each, action in self._option_string_actions.items() if action.help != argparse.SUPPRESS]
        known = {each.lstrip("-"): each for each in shown if each.startswith("--")}
        name = flag.lstrip("-")
        for each in known:
            if len(name) >= SHORTEST and (each.startswith(name) or name.startswith(each)):
                return f" (did you mean {known[each]}?)"
        return suggestion(name, known).replace("did you mean ", "did you mean --")


class InheritingParser(ArgumentParser):
    """A parser with the flags of `parents`; its help shows its own groups before theirs."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._inherited = list(self._action_groups)

    def format_help(self) -> str:
        """Format the help, with positional arguments first, then its own groups, then inherited ones."""
        groups = self._action_groups
        own = [group for group in groups if group not in self._inherited]
        positionals, *others = self._inherited
        self._action_groups = [positionals, *own, *others]
        try:
            return super().format_help()
        finally:
            self._action_groups = groups
