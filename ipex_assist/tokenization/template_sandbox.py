"""The environment in which chat templates are compiled: jinja2's sandbox, with a bound on single operations.

A thread that computes 9 ** (9 ** 9) holds Python's lock (GIL) until it is done, so that no time limit ends it: what one
operation may make is limited instead, by sizes that are known before it begins. That holds for whatever is computed in
C: texts, numbers, comparisons, regular expressions. Loops in Python (lipsum, map, pprint) end by the time limit, and so
do the checks themselves.
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
import jinja2.runtime
import jinja2.sandbox

MOST_BITS = 1 << 16  # of an integer
MOST_ITEMS = 1 << 26  # characters of a text; items of a list, which take as much memory as _ITEM of them
_ITEM = 8
_LIST = 512  # likewise of each list or object, which a check has to look into
LONGEST_FOR_REGEX = 10_000  # characters for filters whose regular expressions take time by their square
# The largest numbers that may be given to methods and filters which make something that long, or that often.
_LARGEST = dict.fromkeys(("center", "ljust", "rjust", "zfill", "to_bytes", "batch", "slice"), 1_000_000) | {
    "tojson": 100,  # spaces of each line
    "round": 1000,
}
# Filters that compare or print all of a value, however deep.
_WHOLE = frozenset(
    (
        "string",
        "join",
        "tojson",
        "pprint",
        "sort",
        "unique",
        "min",
        "max",
        "groupby",
        "dictsort",
        "urlencode",
        "replace",
    )
)
_COMPARING_TESTS = frozenset(
    ("in", "==", "eq", "equalto", "!=", "ne", ">", "gt", "greaterthan", ">=", "ge", "<", "lt", "lessthan", "<=", "le")
)
_REVERSE_SEARCH = frozenset(("rfind", "rindex", "rsplit", "rpartition"))  # by the product of both lengths, as is strip
_STRIPS = frozenset(("strip", "lstrip", "rstrip", "trim"))
# Fields of format strings, and of those the ones whose width is an argument.
_PERCENT = re.compile(r"%[^a-zA-Z%]*"), re.compile(r"%[^a-zA-Z%]*\*")
_BRACES = re.compile(r"\{[^{}]*\}"), re.compile(r"\{[^{}]*:[^{}]*\{")


class _BoundedCodeGenerator(jinja2.compiler.CodeGenerator):
    """Has `a ~ b` computed by the environment, as the sandbox does it with `a + b`, and checks what is compared."""

    def visit_Concat(self, node: jinja2.nodes.Concat, frame: Any) -> None:
        self.write("environment.concatenate((")
        for each in node.nodes:
            self.visit(each, frame)
            self.write(", ")
        self.write("))")

    def visit_Compare(self, node: jinja2.nodes.Compare, frame: Any) -> None:
        self.write("(")
        self._visit_checked(node.expr, frame)
        for each in node.ops:
            self.write(f" {jinja2.compiler.operators[each.op]} ")
            self._visit_checked(each.expr, frame)
        self.write(")")

    def visit_Dict(self, node: jinja2.nodes.Dict, frame: Any) -> None:
        self.write("{")
        for each in node.items:
            self._visit_checked(each.key, frame)  # which is hashed
            self.write(": ")
            self.visit(each.value, frame)
            self.write(", ")
        self.write("}")

    def _visit_checked(self, node: jinja2.nodes.Node, frame: Any) -> None:
        self.write("environment.checked(")
        self.visit(node, frame)
        self.write(")")


class BoundedEnvironment(jinja2.sandbox.ImmutableSandboxedEnvironment):
    """jinja2's sandbox, in which an operation that makes more than MOST_BITS or MOST_ITEMS raises SecurityError."""

    intercepted_binops = frozenset({"**", "*", "+", "%"})
    code_generator_class = _BoundedCodeGenerator

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, finalize=self.checked, **options)
        for name, work in self.filters.items():
            self.filters[name] = bounded_filter(name, work)
        for name in _COMPARING_TESTS:
            self.tests[name] = _bounded_test(self.tests[name])

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        if operator == "**":
            _check_power(left, right)
        elif operator == "*":
            _check_product(left, right)
        elif operator == "+":
            _check_items(_size(left) + _size(right))
        elif operator == "%" and isinstance(left, (str, bytes)):
            _check_format(left, (right,), *_PERCENT)
        return super().call_binop(context, operator, left, right)

    @staticmethod
    def checked(value: Any) -> Any:
        """The value, which may be printed or compared: nested lists may hold the same ones many times."""
        if isinstance(value, (list, tuple, dict)):
            _check_items(_weight(value))
        return value

    def getitem(self, obj: Any, argument: Any) -> Any:
        return super().getitem(obj, self.checked(argument))

    def concatenate(self, values: Iterable[Any]) -> str:
        """The texts of values one after the other."""
        texts = [str(self.checked(value)) for value in values]
        _check_items(sum(map(len, texts)))
        return "".join(texts)

    def call(__self, __context: Any, __obj: Any, *arguments: Any, **named: Any) -> Any:  # self as jinja2 has it
        owner = getattr(getattr(__obj, "__wrapped__", __obj), "__self__", None)
        if isinstance(owner, jinja2.runtime.LoopContext):  # changed() compares
            BoundedEnvironment.checked(arguments)
        elif isinstance(owner, (str, bytes, list, tuple, dict, int, float)) or owner is int:
            _check_call(getattr(__obj, "__name__", ""), owner, (*arguments, *named.values()))
        return super().call(__context, __obj, *arguments, **named)


def bounded_filter(name: str, work: Callable[..., Any]) -> Callable[..., Any]:
    """The filter with its arguments checked; what jinja2 noted on it, such as what it is passed first, is kept."""
    first = int(hasattr(work, "jinja_pass_arg"))

    @functools.wraps(work)
    def bounded(*arguments: Any, **named: Any) -> Any:
        if len(arguments) > first and name == "format":  # which is the operator %
            _check_format(arguments[first], (*arguments[first + 1 :], *named.values()), *_PERCENT)
        elif len(arguments) > first:
            if name in _WHOLE:
                arguments = (*arguments[:first], _listed(arguments[first]), *arguments[first + 1 :])
                indents = (*arguments[first + 1 :], *named.values()) if name == "tojson" else ()
                _check_items(_weight(arguments[first], max(map(_number_or_size, indents), default=0)))
            elif name == "sum":
                arguments = (*arguments[:first], _listed(arguments[first]), *arguments[first + 1 :])
                _check_sum(arguments[first], (*arguments[first + 1 :], *named.values()))
            _check_call(name, arguments[first], (*arguments[first + 1 :], *named.values()))
        return work(*arguments, **named)

    return bounded


def _bounded_test(work: Any) -> Callable[..., Any]:
    @functools.wraps(work)
    def bounded(*arguments: Any) -> Any:
        BoundedEnvironment.checked(arguments)
        return work(*arguments)

    return bounded


def _check_call(name: str, owner: Any, arguments: tuple[Any, ...]) -> None:
    """Check a method of a text, list or number, or a filter of one, before it is called."""
    if name in _LARGEST:
        _check_numbers(name, arguments)
    elif name in ("format", "format_map") and isinstance(owner, (str, bytes)):
        _check_format(owner, arguments, *_BRACES)
    elif name in ("urlize", "wordwrap") and _size(owner) > LONGEST_FOR_REGEX:
        raise _too_large(f"{name} of {_shown(_size(owner))} characters")
    elif name in ("int", "from_bytes"):  # digits of a base up to 36, or bytes
        _check_bits(max((_size(each) for each in (owner, *arguments) if isinstance(each, (str, bytes))), default=0) * 8)
    elif name in _REVERSE_SEARCH or name in _STRIPS:
        _check_items(_size(owner) * max((_size(each) for each in arguments), default=0))
    elif name == "translate" and arguments and isinstance(arguments[0], dict):
        _check_items(_size(owner) * max(map(_size, arguments[0].values()), default=0))
    elif name == "replace" and len(arguments) > 1 and isinstance(owner, (str, bytes)):
        old, new = arguments[:2]
        if isinstance(old, type(owner)) and isinstance(new, type(owner)):
            _check_items(len(owner) + owner.count(old) * len(new))  # type: ignore[arg-type]
    elif name == "join":
        _check_join(owner, arguments)
    elif isinstance(owner, (list, tuple, dict)):
        for each in arguments:  # compared with items, or hashed
            BoundedEnvironment.checked(each)
        if name in ("index", "count", "remove"):
            BoundedEnvironment.checked(owner)
    elif name in ("indent", "expandtabs") and isinstance(owner, (str, bytes)):
        places = 1 + len(owner.splitlines() if name == "indent" else owner)
        _check_items(len(owner) + places * max(map(_number_or_size, arguments), default=0))


def _listed(value: Any) -> Any:
    """The items of an iterator, which checking would use up."""
    return list(value) if hasattr(value, "__next__") else value


def _number_or_size(value: Any) -> int:
    return abs(value) if isinstance(value, int) else _size(value)


def _check_sum(items: Any, others: Iterable[Any]) -> None:
    """Check a sum of lists, each of which is copied with the sum of those before it."""
    if any(isinstance(each, (list, tuple)) for each in others) and isinstance(items, (list, tuple)):
        _check_items(len(items) * sum(len(each) for each in items if isinstance(each, (list, tuple, dict))))


def _check_numbers(name: str, arguments: Iterable[Any]) -> None:
    """Check numbers, and the lengths of texts, that say how long something becomes."""
    for each in arguments:
        values = each if isinstance(each, (list, tuple)) else (each,)
        for value in values:
            size = _number_or_size(value)
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


def _weight(value: Any, indent: int = 0) -> int:
    """At least the characters of a value and all that it contains, each as often as it is contained.

    indent: further characters of each item, for each level. Stops beyond MOST_ITEMS.
    """
    total, left = 0, [(value, 0)]
    while left and total <= MOST_ITEMS:
        each, depth = left.pop()
        if isinstance(each, (str, bytes)):
            total += len(each)
        elif isinstance(each, int):
            total += each.bit_length() // 3
        elif isinstance(each, (list, tuple, dict)):
            total += _LIST + len(each) * (_ITEM + indent * (depth + 1))
            if total <= MOST_ITEMS:
                left += [(inner, depth + 1) for inner in each]
            if isinstance(each, dict) and total <= MOST_ITEMS:
                left += [(inner, depth + 1) for inner in each.values()]
    return total


def _check_format(form: Any, values: tuple[Any, ...], fields: re.Pattern[str], nested: re.Pattern[str]) -> None:
    """Check that a format string names no huge width, takes none from its arguments, and repeats no long ones."""
    text = form.decode("latin-1") if isinstance(form, bytes) else str(form)
    if found := nested.search(text):
        raise _too_large(f"a format with {found[0]}")
    numbers = [number for field in fields.findall(text) for number in re.findall(r"\d+", field)]
    _check_items((text.count("%" if fields is _PERCENT[0] else "{") or 1) * _weight(values))
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
