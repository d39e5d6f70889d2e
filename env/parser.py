"""The argument parser of all commands: argparse, with one of its bugs fixed."""

from __future__ import annotations

import argparse
from typing import Any


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
