"""Files, functions and classes stay short enough to read: fails where one is longer than it may be.

A file of Python or C++ has at most 450 lines and a function 60; a class of Python has 25 methods, properties among
them.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LINES, FUNCTION_LINES, METHODS = 450, 60, 25
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
# What of C++ holds no code of its own: comments, literals, and lines of the preprocessor with those that continue them.
NOT_CODE = re.compile(
    r"""//[^\n]*|/\*.*?\*/|R"\((?:.|\n)*?\)"|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])+'|^[ \t]*\#(?:\\\n|[^\n])*""",
    re.DOTALL | re.MULTILINE,
)
NO_FUNCTION = re.compile(r"\s*(namespace|enum|(static |constexpr |const )*\w+ \w+\s*=)")  # though it has parentheses


def sizes(path: Path, name: str) -> Iterator[tuple[str, int, int, str]]:
    """What is in a file, as (name, size, most, unit)."""
    text = path.read_text(encoding="utf-8")
    yield name, len(text.splitlines()), LINES, "lines"
    if path.suffix == ".py":
        yield from _definitions(ast.parse(text), name)
    else:
        for function, lines in cpp_functions(text):
            yield f"{name}:{function}", lines, FUNCTION_LINES, "lines"


def _definitions(tree: ast.AST, name: str) -> Iterator[tuple[str, int, int, str]]:
    for node in ast.iter_child_nodes(tree):
        if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            yield from _definitions(node, name)
            continue
        full = f"{name}:{node.name}" if ":" not in name else f"{name}.{node.name}"
        if isinstance(node, ast.ClassDef):
            methods = [each for each in node.body if isinstance(each, FUNCTIONS) and not _is_overload(each)]
            yield full, len(methods), METHODS, "methods"
        else:
            assert node.end_lineno is not None
            yield full, node.end_lineno - node.lineno + 1, FUNCTION_LINES, "lines"
        yield from _definitions(node, full)


def _is_overload(function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Whether it is a type of another method, and none itself."""
    return any(isinstance(each, ast.Name) and each.id == "overload" for each in function.decorator_list)


def cpp_functions(text: str) -> Iterator[tuple[str, int]]:
    """The functions of a C++ file, and the lines of each from its name to its last brace, with its lambdas."""
    code = NOT_CODE.sub(lambda match: re.sub(r"[^\n]", " ", match[0]), text)
    depth, line, start = 0, 1, 0  # start: of what may become a definition
    name, outer, began = "", 0, 0  # of the function that we are in: the depth around it, and its first line
    for match in re.finditer(r"[{};\n]", code):
        if match[0] == "\n":
            line += 1
            continue
        if match[0] == "{":
            head = code[start : match.start()]
            named = re.search(r"([\w:~]+|operator[^\w\s]+)\s*\(", head)
            if named and not name and not NO_FUNCTION.match(head):
                name, outer, began = named[1], depth, line - head[named.start() :].count("\n")
            depth += 1
        elif match[0] == "}":
            depth -= 1
            if name and depth == outer:
                yield name, line - began + 1
                name = ""
        if not name:
            start = match.end()


def found() -> Iterator[tuple[str, int, int, str]]:
    """`sizes` of all files. env/ and launch/ are links inside ipex_assist/: they count once."""
    for folder in ("ipex_assist", "env", "launch"):
        for path in sorted((ROOT / folder).rglob("*")):
            if path.suffix in (".py", ".h", ".cpp") and path.resolve() == path:
                yield from sizes(path, str(path.relative_to(ROOT)))


def main() -> int:
    failed = [f"{name} has {size} {unit}: {most} at most" for name, size, most, unit in found() if size > most]
    print("\n".join(failed), file=sys.stderr)
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
