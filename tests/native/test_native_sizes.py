"""Functions of the C++ core fit on a screen and its classes stay small: read from its sources, without a compiler."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from ipex_assist.native import build

LONGEST_FUNCTION = 60  # lines, from its head to its closing brace
MOST_METHODS = 25  # declared or defined in a class, constructors included
# To go: what these do is being moved into free functions.
EXEMPT: set[str] = set()

NOT_CODE = re.compile(
    r"""//[^\n]* | /\*.*?\*/ | ^[ \t]*\#(?:[^\n]*\\\n)*[^\n]* | "(?:\\.|[^"\\\n])*" | '(?:\\.|[^'\\\n])'""",
    re.VERBOSE | re.DOTALL | re.MULTILINE,
)


@dataclass
class Size:
    """A function and its lines, or a class and its methods."""

    kind: str
    name: str
    line: int
    size: int


@dataclass
class _Scope:
    kind: str  # "class", "function" or "other"; "namespace" where functions may stand
    name: str
    line: int
    methods: list[str] = field(default_factory=list)


def sizes(source: str) -> Iterator[Size]:
    """Yield the functions and classes of a source file. Lambdas belong to the function around them."""
    text = NOT_CODE.sub(lambda found: " " + "\n" * found[0].count("\n"), source)
    scopes, head, start = [_Scope("namespace", "", 1)], "", 0
    for place, char in enumerate(text):
        scope = scopes[-1]
        if char == ";":
            if scope.kind == "class" and _function(head):
                scope.methods.append(head)
            head = ""
        elif char == "{":
            opened = _scope(head, scope, text.count("\n", 0, start) + 1)
            if opened.kind == "function" and scope.kind == "class":
                scope.methods.append(head)
            scopes.append(opened)
            head = head + "{" if opened.kind == "initializer" else ""
        elif char == "}":
            closed = scopes.pop()
            if closed.kind == "function":
                yield Size("function", closed.name, closed.line, text.count("\n", 0, place) + 2 - closed.line)
            elif closed.kind == "class":
                yield Size("class", closed.name, closed.line, len(closed.methods))
            head = head + "}" if closed.kind == "initializer" else ""
        elif char == ":" and head in ("public", "private", "protected"):
            head = ""
        else:
            if not head and not char.isspace():
                start = place
            head += char if head or not char.isspace() else ""


def _scope(head: str, outside: _Scope, line: int) -> _Scope:
    plain = _plain(head)
    if re.match(r"namespace\b|extern\b(?!.*\()", plain):
        return _Scope("namespace", "", line)
    if outside.kind not in ("namespace", "class"):
        return _Scope("initializer" if outside.kind == "initializer" else "other", "", line)
    if found := re.match(r"(?:class|struct|union)\s+(\w+)(?!.*\()", plain):
        return _Scope("class", found[1], line)
    # Of a constructor's list: `: size_{0}` and what follows it.
    if _function(head) and not re.search(r"\)\s*(?:\w+\s*)*:(?!:).*\w$", plain):
        return _Scope("function", re.findall(r"([\w~:]+)\s*\(", plain)[0], line)
    return _Scope("initializer", "", line)


def _plain(head: str) -> str:
    """The head of a declaration without template arguments, attributes and the signs of an operator's name."""
    text = re.sub(r"operator\s*(?:\(\)|[^\s\w(]+)", "operator_", " ".join(head.split()))
    text = re.sub(r"__attribute__\s*\(\(.*?\)\)|\balignas\(\w+\)", "", text)
    while (shorter := re.sub(r"<[^<>]*>", "", text)) != text:
        text = shorter
    return re.sub(r"^(?:template\b|HOT_LOOP\b|\s)+", "", text)


def _function(head: str) -> bool:
    """Whether a declaration declares a function; not a variable with a value, nor a pointer to a function."""
    plain = _plain(head)
    before, parenthesis, after = plain.partition("(")
    if not parenthesis or re.search("[={]", before) or after.startswith("*"):
        return False
    return re.match(r"using|typedef|friend|static_assert", plain) is None and re.search(r"\w\s*$", before) is not None


def test_sizes_are_found() -> None:
    """A function that is not seen could be of any length."""
    source = """
#include "x.h"
#define LONG(x) \\
    { x; }
namespace a {
// A class { that is none.
template <class T>
struct alignas(64) Box : Base<T> {
    explicit Box(int x_) : x(x_), y{"{"}, z_{1} {
        start();
    }
    Box(const Box&) = delete;
    void operator()(int) const;
    bool operator==(const Box&) const { return true; }
    template <class F>
    int each(F&& f,
             int last) const {
        for (int i = 0; i < last; i++) {
            f([&] { return i; });
        }
        return last;
    }
    void (*pointer)(int) = nullptr;
    std::function<void(int)> called;
    int values[2] = {1, one(2)};
    std::atomic<int> number{one(2)};
};
const Thing THINGS[] = {{1, f(2)}};
HOT_LOOP void far(const __m512 (&x)[4]) {
    if (x) {
    }
}
}
"""
    found = [(each.kind, each.name, each.line, each.size) for each in sizes(source)]
    assert found == [
        ("function", "Box", 9, 3),
        ("function", "operator_", 14, 1),
        ("function", "each", 15, 8),
        ("class", "Box", 7, 5),
        ("function", "far", 29, 4),
    ]


def test_functions_and_classes_are_small() -> None:
    files = sorted(path for path in build.HERE.glob("*/*") if path.suffix in (".cpp", ".h"))
    found = [(path, each) for path in files for each in sizes(path.read_text(encoding="utf-8"))]
    assert sum(each.kind == "function" for _, each in found) > 300, "functions of the core are not recognised"
    most = {"function": LONGEST_FUNCTION, "class": MOST_METHODS}
    large = [(path, each) for path, each in found if each.size > most[each.kind] and each.name not in EXEMPT]
    lines = [
        f"{path.relative_to(Path(build.HERE))}:{each.line}: {each.kind} {each.name}: {each.size}"
        for path, each in large
    ]
    assert not lines, "\n".join(["over 60 lines or 25 methods:", *lines])
