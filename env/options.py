"""Options declared once, as dataclass fields with default, range and help, for the command line, JSON and Python."""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import numbers
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeVar

from ipex_assist.env.errors import UsageError

LONGEST_SHOWN = 1000  # characters of a wrong value in a message; there may be thousands of logit biases
KEY = "option"  # under which a field's metadata holds its Option


class Kind:
    """The type of an option's values. `take` and `read` raise ValueError that says what is wrong ("must be …")."""

    def take(self, value: Any) -> Any:
        """Check a value from JSON or Python, and return it in its stored form."""
        raise NotImplementedError

    def read(self, text: str) -> Any:
        """Parse a word of the command line: a value in its stored form, or one element of a list."""
        return self.take(text)

    def keywords(self) -> dict[str, Any]:
        """Further keyword arguments for argparse's `add_argument`. Without any, the flag takes one word."""
        return {}


def _plain(value: Any) -> Any:
    """An int or float for a number of another library's type, NumPy's for one; all else as it is."""
    if isinstance(value, (bool, int, float)):
        return value
    if isinstance(value, numbers.Integral):
        return int(value)
    return float(value) if isinstance(value, numbers.Real) else value


@dataclass(frozen=True)
class Number(Kind):
    """A number between `lowest` and `highest`, or one of `also` (value → its meaning, for messages)."""

    lowest: float
    highest: float
    whole: bool = False
    also: Mapping[float, str] = field(default_factory=dict)

    def take(self, value: Any) -> Any:
        """An int where `whole`, else an int or a float; true and false are not numbers."""
        value = _plain(value)
        right = isinstance(value, int) if self.whole else isinstance(value, (int, float))
        if isinstance(value, bool) or not right or (isinstance(value, float) and not math.isfinite(value)):
            raise ValueError(self._range)
        if value not in self.also and not self.lowest <= value <= self.highest:
            raise ValueError(self._range)
        return value

    @property
    def _range(self) -> str:
        others = "".join(f"{value:g} ({meaning}) or " for value, meaning in self.also.items())
        kind = "a whole number" if self.whole else "a number"
        lowest, highest = (str(int(end)) if self.whole else f"{end:g}" for end in (self.lowest, self.highest))
        return f"must be {others}{kind} between {lowest} and {highest}"

    def read(self, text: str) -> Any:
        """Parse the number as Python does."""
        try:
            value = int(text) if self.whole else float(text)
        except ValueError:
            raise ValueError(self._range) from None
        return self.take(value)


@dataclass(frozen=True)
class Size(Kind):
    """A number of bytes, also written as 8G, 1.5 GiB or 500M; K is 1024."""

    def take(self, value: Any) -> int:
        """A number of bytes, or a text as on the command line."""
        if isinstance(value, str):
            return self.read(value)
        value = _plain(value)
        if isinstance(value, bool) or not isinstance(value, int) or not 0 < value < 1 << 62:
            raise ValueError("must be a number of bytes above 0, or a text such as 8G or 500M")
        return value

    def read(self, text: str) -> int:
        """Parse a number, whole or not, that K, M, G or T may follow."""
        found = re.fullmatch(
            r"(\d{1,18}(?:\.\d{1,18})?)\s*(?:([kmgt])(?:i?b)?|b)?", text.strip(), re.ASCII | re.IGNORECASE
        )
        if found is None:
            raise ValueError("must be a number of bytes such as 8G or 500M")
        return self.take(int(float(found[1]) * 1024 ** " KMGT".index((found[2] or " ").upper())))


@dataclass(frozen=True)
class Switch(Kind):
    """True or false: `--flag`, and with `both` also `--no-flag`."""

    both: bool = False

    def take(self, value: Any) -> bool:
        """True or false; 0 and 1 are refused."""
        if not isinstance(value, bool):
            raise ValueError("must be true or false")
        return value

    def read(self, text: str) -> bool:
        """Always an error: a switch takes no word on the command line."""
        raise ValueError("takes no value")

    def keywords(self) -> dict[str, Any]:
        """A switch that is not given stays None, so that its default is in the dataclass alone."""
        return {"action": argparse.BooleanOptionalAction if self.both else "store_true"}


@dataclass(frozen=True)
class Choice(Kind):
    """One of the given names."""

    names: Sequence[str]

    def take(self, value: Any) -> str:
        """The name itself."""
        if not isinstance(value, str) or value not in self.names:
            raise ValueError(f"must be one of {', '.join(self.names)}")
        return value


@dataclass(frozen=True)
class Text(Kind):
    """A text that is not empty. check: raises UsageError or ValueError for a text that is not allowed."""

    check: Callable[[str], object] | None = None

    def take(self, value: Any) -> str:
        """The text itself."""
        if not isinstance(value, str) or not value:
            raise ValueError("must be a text, not an empty one" if isinstance(value, str) else "must be a text")
        if self.check is not None:
            self.check(value)
        return value


@dataclass(frozen=True)
class Texts(Kind):
    """A list of texts, none of them empty; a single text is a list of one. The flag may be repeated."""

    def take(self, value: Any) -> tuple[str, ...]:
        """The texts as a tuple, which the caller cannot change later."""
        texts = [value] if isinstance(value, str) else value
        if not isinstance(texts, (list, tuple)) or not all(isinstance(text, str) and text for text in texts):
            raise ValueError("must be a text or a list of texts, none of them empty")
        return tuple(texts)

    def read(self, text: str) -> str:
        """One text of the list."""
        if not text:
            raise ValueError("is empty; give the text")
        return text

    def keywords(self) -> dict[str, Any]:
        """Each occurrence of the flag adds a text."""
        return {"action": "append"}


_TOKEN_ID = Number(0, 2**31 - 1, whole=True)


class CheckedNumbers(dict[int, float]):
    """Numbers by token ids that `TokenNumbers.take` has checked, for `number`; not to be changed."""

    def __init__(self, values: Iterable[tuple[int, float]] = (), number: Number | None = None) -> None:
        super().__init__(values)
        self.number = number


@dataclass(frozen=True)
class TokenNumbers(Kind):
    """A mapping of token ids to numbers; in JSON the ids are strings."""

    number: Number

    def take(self, value: Any) -> dict[int, float]:
        """The numbers by token ids as ints. What it has returned is not checked again: there may be thousands, and
        every `dataclasses.replace` of their options takes them."""
        if isinstance(value, CheckedNumbers) and value.number == self.number:
            return value
        if not isinstance(value, Mapping):
            raise ValueError('must be an object of token ids and numbers, such as {"50256": -100}')
        taken = CheckedNumbers(number=self.number)
        for key, each in value.items():
            try:
                token = _TOKEN_ID.take(int(key) if isinstance(key, str) else key)
            except ValueError:
                raise ValueError(f"{key!r} is no token id") from None
            try:
                taken[token] = self.number.take(each)
            except ValueError as error:
                raise ValueError(f"{each!r} of token {token} {error}") from None
        return taken

    def read(self, text: str) -> dict[int, float]:
        """Parse a JSON object."""
        try:
            value = json.loads(text)
        except (ValueError, RecursionError):
            value = None
        return self.take(value)


@dataclass(frozen=True)
class Option:
    """An option's properties besides its name and default.

    metavar: for the help. flags: None: made from the name; (): no flag, for options that only Python can set. needs:
    the switch without which the option has no effect. aliases: further flags that work the same, and that help does
    not list.
    """

    kind: Kind
    help: str
    metavar: str | None = None
    flags: tuple[str, ...] | None = None
    needs: str | None = None
    aliases: tuple[str, ...] = ()


def option(
    default: Any,
    help: str,
    kind: Kind,
    metavar: str | None = None,
    *,
    flags: tuple[str, ...] | None = None,
    needs: str | None = None,
    aliases: tuple[str, ...] = (),
) -> Any:
    """A dataclass field for an option. A default of None means that the value is decided elsewhere."""
    meta = {KEY: Option(kind, help, metavar, flags, needs, aliases)}
    if isinstance(default, dict):
        return field(default_factory=dict, metadata=meta)
    return field(default=default, metadata=meta)


Own = TypeVar("Own", bound="Options")


class Options:
    """Base class of option dataclasses. Values are checked when an object is made; None stands for the default."""

    __dataclass_fields__: ClassVar[dict[str, Any]]

    def __post_init__(self) -> None:
        """Raise UsageError for the first value of the wrong type or out of range."""
        for each in dataclasses.fields(self):
            value = getattr(self, each.name)
            if value is None:
                value = default_of(each)
            if value is not None and KEY in each.metadata:
                value = checked(each.name, each.metadata[KEY].kind.take, value)
            object.__setattr__(self, each.name, value)

    @classmethod
    def of(cls: type[Own], base: Own | None = None, /, **changes: Any) -> Own:
        """`base`, or the defaults, with these changes. Raises UsageError for an unknown name or a wrong value."""
        names = {each.name for each in dataclasses.fields(cls)}
        for name in changes:
            if name not in names:
                raise UsageError(f"{name}: there is no such option{suggestion(name, names)}")
        if base is not None and not isinstance(base, cls):
            raise UsageError(
                f"options is of type {type(base).__name__}: give {cls.__name__}(…), or its fields by their names"
            )
        given = {name: value for name, value in changes.items() if value is not None}
        return cls(**given) if base is None else dataclasses.replace(base, **given)

    @classmethod
    def part_of(cls: type[Own], options: Any, **more: Any) -> Own:
        """An object of this class with fields taken from `options`, which has more; `more` are those it lacks."""
        names = [each.name for each in dataclasses.fields(cls) if each.name not in more]
        return cls(**{name: getattr(options, name) for name in names}, **more)

    @classmethod
    def from_flags(cls: type[Own], args: argparse.Namespace, **more: Any) -> Own:
        """The options of a command line parsed with `add_flags`; `more` are fields without flags."""
        return cls.of(**{name: getattr(args, dest, None) for name, dest in destinations(cls).items()}, **more)

    @classmethod
    def without_effect(cls, given: Iterable[str], options: Options) -> dict[str, str]:
        """Those of the options given by name that `options` make no use of, with the switch that each needs."""
        table = options_of(cls)
        needs = {name: table[name].needs for name in given if name in table}
        return {name: switch for name, switch in needs.items() if switch and not getattr(options, switch)}

    def as_dict(self) -> dict[str, Any]:
        """The fields as plain data for JSON; `of(**data)` gives an equal object."""
        return dataclasses.asdict(self)  # type: ignore[call-overload, no-any-return]

    def changed(self) -> dict[str, Any]:
        """The fields that differ from their defaults."""
        return {
            each.name: getattr(self, each.name)
            for each in dataclasses.fields(self)
            if getattr(self, each.name) != default_of(each)
        }


def default_of(each: dataclasses.Field[Any]) -> Any:
    """The default of a field; None for a field without one."""
    if each.default_factory is not dataclasses.MISSING:
        return each.default_factory()
    return None if each.default is dataclasses.MISSING else each.default


def options_of(cls: type[Options]) -> dict[str, Option]:
    """The options of a class by field name, in the order of the fields."""
    return {each.name: each.metadata[KEY] for each in dataclasses.fields(cls) if KEY in each.metadata}


def checked(name: str, take: Callable[[Any], Any], value: Any) -> Any:
    """`take(value)`, with a ValueError turned into a UsageError that names the option as the user wrote it."""
    try:
        return take(value)
    except ValueError as error:
        shown = value if isinstance(value, str) and value and name.startswith("-") else repr(value)
        shown = shown if len(shown) <= LONGEST_SHOWN else f"{shown[:LONGEST_SHOWN]}…"
        raise UsageError(f"{name} {shown}: {error}") from None


def suggestion(name: str, names: Iterable[str]) -> str:
    """ " (did you mean …?)" for the most similar of `names`, to append to a message; empty where none is similar."""
    import difflib  # imported here, since only an error needs it

    close = difflib.get_close_matches(name, list(names), n=1, cutoff=0.75)
    return f" (did you mean {close[0]}?)" if close else ""


def flags_of(name: str, one: Option) -> tuple[str, ...]:
    """An option's flags: by default `--max-new-tokens` for max_new_tokens."""
    return ("--" + name.replace("_", "-"),) if one.flags is None else one.flags


def destinations(cls: type[Options]) -> dict[str, str]:
    """Field name → argparse's `dest`, for options that have flags."""
    flags = {name: flags_of(name, one) for name, one in options_of(cls).items()}
    return {name: max(each, key=len).lstrip("-").replace("-", "_") for name, each in flags.items() if each}


def read_flag(cls: type[Options], name: str) -> Callable[[str], Any]:
    """A function that parses a word of the command line for this option; its UsageError names the flag."""
    one = options_of(cls)[name]
    flag = max(flags_of(name, one), key=len)
    return lambda text: checked(flag, one.kind.read, text)


def add_flags(group: argparse._ActionsContainer, cls: type[Options], names: Iterable[str] | None = None) -> None:
    """Add a flag for each option, or for those in `names`. A flag that is not given is None."""
    table = options_of(cls)
    for each in dataclasses.fields(cls):
        if each.name not in table or (names is not None and each.name not in names):
            continue
        one = table[each.name]
        if not (flags := flags_of(each.name, one)):
            continue
        keywords = {"default": None, "help": described(default_of(each), one), **one.kind.keywords()}
        if not isinstance(one.kind, Switch):
            keywords |= {"type": read_flag(cls, each.name), "metavar": one.metavar}
        action = group.add_argument(*flags, **keywords)
        if isinstance(one.kind, Choice):
            action.names = one.kind.names  # type: ignore[attr-defined]  # for shells that complete it
        if one.aliases:
            hidden = {"dest": destinations(cls)[each.name], "default": argparse.SUPPRESS, "help": argparse.SUPPRESS}
            group.add_argument(*one.aliases, **keywords | hidden)


def described(default: Any, one: Option) -> str:
    """The help text, with the default where that is worth showing."""
    if default is None or isinstance(default, (bool, tuple, dict)) or "(default" in one.help:
        return one.help
    return f"{one.help} (default: {default})" if one.help else f"(default: {default})"


def documented(cls: type[Own]) -> type[Own]:
    """Class decorator: append a line for each option to the docstring, for `help()`."""
    lines = [
        f"    {each.name}: {described(default_of(each), options_of(cls)[each.name])}"
        for each in dataclasses.fields(cls)
        if each.name in options_of(cls)
    ]
    cls.__doc__ = "\n".join([(cls.__doc__ or "").rstrip(), "", *lines])
    return cls
