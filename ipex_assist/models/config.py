"""A config.json read by type: a value of the wrong kind is refused by the name and value that the file has."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any, TypeVar

from ipex_assist.env.errors import IpexAssistError

T = TypeVar("T")

_SHOWN = 60  # characters of a wrong value


class ConfigError(IpexAssistError):
    """A value that a config.json cannot have. `must` completes "it must be …"."""

    def __init__(self, name: str, value: Any, must: str) -> None:
        self.name, self.value, self.must = name, value, must
        super().__init__(f"{name} is {_shown(value)} in the model's config; it must be {must}")


class MissingError(ConfigError):
    """A value that every config.json of this architecture has, and this one lacks."""

    def __init__(self, name: str) -> None:
        super().__init__(name, None, "given")
        self.args = (f"the model's config lacks {name}: is it complete?",)


class NotComputed(IpexAssistError):
    """A sound config that asks for something our own decoder does not compute: transformers may."""


class Config:
    """The values of a config.json (or a part of it).

    Names are Hugging Face's usual ones; `other_names` are those that an architecture's files have instead
    ("n_embd" for "hidden_size"), as transformers' own `attribute_map` lists them.

    Each method returns the value at `name`, or `default` where the file has none or null; without a default it is
    required. ConfigError for a value of another type.
    """

    def __init__(self, values: Mapping[str, Any], other_names: Mapping[str, str] | None = None) -> None:
        self.values, self.other_names = values, other_names or {}

    def but(self, **values: Any) -> Config:
        """The same with other values."""
        return Config({**self.values, **values}, self.other_names)

    def stored_name(self, name: str) -> str:
        """The name that the file has for it."""
        return self.other_names.get(name, name)

    def integer(self, name: str, default: int | None = None) -> int:
        """A whole number, written without a point."""
        found = self._read(name, default, (int,), "a whole number")
        return self._given(name, found)

    def optional_integer(self, name: str) -> int | None:
        """A whole number, or None where there is none."""
        return self._read(name, None, (int,), "a whole number or null")

    def number(self, name: str, default: float | None = None) -> float:
        """A finite number."""
        return self._given(name, self.optional_number(name, default))

    def optional_number(self, name: str, default: float | None = None) -> float | None:
        """A finite number, or None where there is none."""
        found = self._read(name, default, (int, float), "a number")
        try:
            known = found is None or math.isfinite(found)
        except OverflowError:  # a whole number beyond the floats
            known = False
        if not known:
            raise ConfigError(self.stored_name(name), found, "a finite number")
        return found

    def flag(self, name: str, default: bool) -> bool:
        """true or false."""
        found = self.values.get(self.stored_name(name))
        if found is not None and not isinstance(found, bool):
            raise ConfigError(self.stored_name(name), found, "true or false")
        return default if found is None else found

    def text(self, name: str, default: str) -> str:
        """A string."""
        return self._given(name, self._read(name, default, (str,), "a string"))

    def optional_texts(self, name: str) -> list[str] | None:
        """A list of strings, or None where there is none."""
        found: list[Any] | None = self._read(name, None, (list,), "a list of strings")
        if found is not None and not all(isinstance(text, str) for text in found):
            raise ConfigError(self.stored_name(name), found, "a list of strings")
        return found

    def numbers(self, name: str) -> tuple[float, ...]:
        """A list of finite numbers."""
        found: list[Any] = self._given(name, self._read(name, None, (list,), "a list of numbers"))
        return tuple(Config({name: value}).number(name) for value in found)

    def ends(self, name: str, default: tuple[float, float]) -> tuple[float, float]:
        """Two numbers, which may be infinite: transformers writes {"__float__": "Infinity"}."""
        found = self.values.get(self.stored_name(name))
        if found is None:
            return default
        ends = [_float(end) for end in found] if isinstance(found, (list, tuple)) else []
        if len(ends) != 2 or None in ends:
            raise ConfigError(self.stored_name(name), found, "a list of two numbers")
        return ends[0] or 0.0, ends[1] or 0.0

    def integers(self, name: str) -> tuple[int, ...]:
        """A list of whole numbers; empty where there is none."""
        found: list[Any] = self._read(name, None, (list,), "a list of whole numbers") or []
        return tuple(Config({name: value}).integer(name) for value in found)

    def optional_flags(self, name: str) -> list[bool] | None:
        """A list of 0 and 1, or None where there is none."""
        found: list[Any] | None = self._read(name, None, (list,), "a list of 0 and 1")
        if found is not None and not all(value in (0, 1) for value in found):
            raise ConfigError(self.stored_name(name), found, "a list of 0 and 1")
        return None if found is None else [bool(value) for value in found]

    def part(self, name: str) -> dict[str, Any]:
        """An object; empty where there is none."""
        return dict(self._read(name, {}, (dict,), "an object or null") or {})

    def _read(self, name: str, default: T | None, kinds: tuple[type, ...], must: str) -> T | None:
        found = self.values.get(self.stored_name(name))
        if found is None:
            return default
        if not isinstance(found, kinds) or isinstance(found, bool):
            raise ConfigError(self.stored_name(name), found, must)
        return found  # type: ignore[return-value]

    def _given(self, name: str, found: T | None) -> T:
        if found is None:
            raise MissingError(self.stored_name(name))
        return found


def _float(value: Any) -> float | None:
    """A number, also one as transformers writes it where JSON has none; None for anything else."""
    if isinstance(value, dict):
        return {"Infinity": math.inf, "-Infinity": -math.inf}.get(str(value.get("__float__")))
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        return None
    try:
        return float(value)
    except OverflowError:  # a whole number beyond the floats
        return None


def _shown(value: Any) -> str:
    text = json.dumps(value, default=str)
    return text if len(text) <= _SHOWN else text[:_SHOWN] + "…"
