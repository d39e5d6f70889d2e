"""The environment in which chat templates are compiled: jinja2's sandbox, with a bound on single operations.

A thread that computes 9 ** (9 ** 9) holds Python's lock (GIL) until it is done, so that no time limit ends it: what one
operation may make is limited instead, by sizes that are known before it begins.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterable
from typing import Any

import jinja2.compiler
import jinja2.exceptions
import jinja2.ext
import jinja2.nodes
import jinja2.sandbox

MOST_BITS = 1 << 16  # of an integer
MOST_ITEMS = 1 << 26  # characters of a text; items of a list, which take as much memory as _ITEM of them
_ITEM = 8
# The largest numbers that may be given to methods and filters which make something that long, or that often.
_LARGEST = dict.fromkeys(("center", "ljust", "rjust", "zfill", "to_bytes", "batch", "slice"), 1_000_000) | {
    "tojson": 100,  # spaces of each line
    "round": 1000,
}
# Fields of format strings, and of those the ones whose width is an argument.
_PERCENT = re.compile(r"%[^a-zA-Z%]*"), re.compile(r"%[^a-zA-Z%]*\*")
_BRACES = re.compile(r"\{[^{}]*\}"), re.compile(r"\{[^{}]*:[^{}]*\{")


class _BoundedCodeGenerator(jinja2.compiler.CodeGenerator):
    """Has `a ~ b` computed by the environment, as the sandbox does it with `a + b`."""

    def visit_Concat(self, node: jinja2.nodes.Concat, frame: Any) -> None:
        self.write("environment.concatenate((")
        for each in node.nodes:
            self.visit(each, frame)
            self.write(", ")
        self.write("))")


class BoundedEnvironment(jinja2.sandbox.ImmutableSandboxedEnvironment):
    """jinja2's sandbox, in which an operation that makes more than MOST_BITS or MOST_ITEMS raises SecurityError."""

    intercepted_binops = frozenset({"**", "*", "+", "%"})
    code_generator_class = _BoundedCodeGenerator

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        for name, work in self.filters.items():
            self.filters[name] = bounded_filter(name, work)

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        if operator == "**":
            _check_power(left, right)
        elif operator == "*":
            _check_product(left, right)
        elif operator == "+":
            _check_items(_size(left) + _size(right))
        elif operator == "%" and isinstance(left, (str, bytes)):
            _check_format(left, *_PERCENT)
        return super().call_binop(context, operator, left, right)

    def concatenate(self, values: Iterable[Any]) -> str:
        """The texts of values one after the other."""
        texts = [str(value) for value in values]
        _check_items(sum(map(len, texts)))
        return "".join(texts)

    def call(__self, __context: Any, __obj: Any, *arguments: Any, **named: Any) -> Any:  # self as jinja2 has it
        owner = getattr(getattr(__obj, "__wrapped__", __obj), "__self__", None)
        if isinstance(owner, (str, bytes, list, tuple, int, float)):
            _check_call(getattr(__obj, "__name__", ""), owner, (*arguments, *named.values()))
        return super().call(__context, __obj, *arguments, **named)


def bounded_filter(name: str, work: Callable[..., Any]) -> Callable[..., Any]:
    """The filter with its arguments checked; what jinja2 noted on it, such as what it is passed first, is kept."""
    first = int(hasattr(work, "jinja_pass_arg"))

    @functools.wraps(work)
    def bounded(*arguments: Any, **named: Any) -> Any:
        if len(arguments) > first and name == "format":  # which is the operator %
            _check_format(arguments[first], *_PERCENT)
        elif len(arguments) > first:
            _check_call(name, arguments[first], (*arguments[first + 1 :], *named.values()))
        return work(*arguments, **named)

    return bounded


def _check_call(name: str, owner: Any, arguments: tuple[Any, ...]) -> None:
    """Check a method of a text, list or number, or a filter of one, before it is called."""
    if name in _LARGEST:
        _check_numbers(name, arguments)
    elif name in ("format", "format_map") and isinstance(owner, (str, bytes)):
        _check_format(owner, *_BRACES)
    elif name == "replace" and len(arguments) > 1 and isinstance(owner, (str, bytes)):
        old, new = arguments[:2]
        if isinstance(old, type(owner)) and isinstance(new, type(owner)):
            _check_items(len(owner) + owner.count(old) * len(new))  # type: ignore[arg-type]
    elif name == "join":
        _check_join(owner, arguments)
    elif name in ("indent", "expandtabs", "wordwrap") and isinstance(owner, (str, bytes)):
        places = len(owner) if name == "wordwrap" else 1 + len(owner.splitlines() if name == "indent" else owner)
        lengths = (each if isinstance(each, int) and name != "wordwrap" else _size(each) for each in arguments)
        _check_items(len(owner) + places * max(lengths, default=0))


def _check_numbers(name: str, arguments: Iterable[Any]) -> None:
    """Check numbers, and the lengths of texts, that say how long something becomes."""
    for each in arguments:
        values = each if isinstance(each, (list, tuple)) else (each,)
        for value in values:
            size = abs(value) if isinstance(value, int) else _size(value)
            if size > _LARGEST[name]:
                raise _too_large(f"{name} with {_shown(size)}")


def _check_join(owner: Any, arguments: tuple[Any, ...]) -> None:
    """Check `separator.join(list)`, and the filter `list | join(separator)`."""
    items, separator = (arguments[0] if arguments else "", owner) if isinstance(owner, str) else (owner, "")
    if separator == "" and arguments and isinstance(arguments[0], str):
        separator = arguments[0]
    if isinstance(items, (list, tuple)) and isinstance(separator, str):
        texts = sum(len(each) for each in items if isinstance(each, str))
        _check_items(texts + len(items) * len(separator))


def _size(value: Any) -> int:
    """What a text or list counts against MOST_ITEMS; 0 for anything else."""
    if isinstance(value, (str, bytes)):
        return len(value)
    return len(value) * _ITEM if isinstance(value, (list, tuple)) else 0


def _check_power(base: Any, exponent: Any) -> None:
    if isinstance(base, int) and isinstance(exponent, int) and abs(base) > 1 and exponent > 0:
        _check_bits(base.bit_length() * exponent)


def _check_product(left: Any, right: Any) -> None:
    if isinstance(left, int) and isinstance(right, int):
        _check_bits(left.bit_length() + right.bit_length())
    for many, times in ((left, right), (right, left)):
        if isinstance(times, int):
            _check_items(_size(many) * times)


def _check_format(form: Any, fields: re.Pattern[str], nested: re.Pattern[str]) -> None:
    """Check that a format string names no huge width, and takes none from its arguments."""
    text = form.decode("latin-1") if isinstance(form, bytes) else str(form)
    if found := nested.search(text):
        raise _too_large(f"a format with {found[0]}")
    numbers = [number for field in fields.findall(text) for number in re.findall(r"\d+", field)]
    if any(len(each) > 7 for each in numbers) or sum(map(int, numbers)) > MOST_ITEMS:
        raise _too_large("a text by this format")


def _check_bits(bits: int) -> None:
    if bits > MOST_BITS:
        raise _too_large(f"a number of {_shown(bits)} bits")


def _check_items(count: int) -> None:
    if count > MOST_ITEMS:
        raise _too_large(f"{_shown(count)} characters or items")


def _shown(number: int) -> str:
    """A number for a message; a text of millions of digits would take as long as what is refused."""
    return f"{number:,}" if number.bit_length() < 200 else "a number of more than 60 digits"


def _too_large(what: str) -> jinja2.exceptions.SecurityError:
    return jinja2.exceptions.SecurityError(f"a chat template may not make {what} in one step")
