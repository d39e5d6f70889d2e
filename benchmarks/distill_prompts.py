"""Prompts to train a draft head with: the functions of Python packages, one prompt a function.

    pip install --no-deps --target sources networkx more-itertools toolz boltons
    python benchmarks/distill_prompts.py sources --most 700 -o prompts.jsonl

Sources are read, not run. A prompt has a function's signature and the first paragraph of its docstring; which functions
are taken is decided by a hash of their names, so that the same versions give the same file. What the packages are, in
which version and under which licence, is printed as a table for the docs.
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import importlib.metadata
import inspect
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

REQUEST = "Write the Python function with this signature and docstring:\n\n"
WORDS = 6, 60  # of a docstring's first paragraph: fewer say too little, more make a prompt longer than its answer


@dataclass(frozen=True)
class Function:
    """A function of a package, by the module that defines it."""

    package: str
    name: str
    signature: str
    summary: str

    def prompt(self) -> str:
        """What the target is asked."""
        return f'{REQUEST}{self.signature}\n    """{self.summary}"""\n'

    def order(self) -> bytes:
        """Where it stands among the others: by chance, and always there."""
        return hashlib.sha256(f"{self.package} {self.name} {self.signature}".encode()).digest()


def functions(package: str, source: str) -> Iterator[Function]:
    """The public functions of a module that say what they do; methods are left out, as they need their class."""
    for node in ast.parse(source).body:
        if not isinstance(node, ast.FunctionDef) or node.name.startswith("_"):
            continue
        summary = first_paragraph(ast.get_docstring(node) or "")
        if WORDS[0] <= len(summary.split()) <= WORDS[1]:
            returns = f" -> {ast.unparse(node.returns)}" if node.returns is not None else ""
            signature = f"def {node.name}({ast.unparse(node.args)}){returns}:"
            yield Function(package, node.name, signature, summary)


def first_paragraph(docstring: str) -> str:
    """It, on one line."""
    return " ".join(inspect.cleandoc(docstring).split("\n\n")[0].split())


def functions_of(distribution: importlib.metadata.Distribution) -> list[Function]:
    """All of a package, tests aside, each signature once."""
    found: dict[str, Function] = {}
    for file in distribution.files or ():
        if file.suffix != ".py" or any(part.startswith("test") for part in file.parts):
            continue
        source = Path(str(file.locate())).read_text(encoding="utf-8", errors="replace")
        for each in functions(distribution.name, source):
            found.setdefault(each.signature, each)
    return list(found.values())


def licence(distribution: importlib.metadata.Distribution) -> str:
    """As the package says it, on one line."""
    told = distribution.metadata
    known = told.get("License-Expression") or (told.get("License") or "").strip().partition("\n")[0]
    if known:
        return known
    named = [line.rpartition(" :: ")[2] for line in told.get_all("Classifier") or () if line.startswith("License ::")]
    return ", ".join(named) or "not said"


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sources", type=Path, help="a folder that pip installed packages into")
    parser.add_argument("--most", type=int, default=700, help="prompts (default: 700)")
    parser.add_argument("-o", "--output", type=Path, required=True)
    args = parser.parse_args(argv)
    packages = sorted(importlib.metadata.distributions(path=[str(args.sources)]), key=lambda each: each.name)
    by_package = {each.name: functions_of(each) for each in packages}
    taken = sorted((each for found in by_package.values() for each in found), key=Function.order)[: args.most]
    with args.output.open("w", encoding="utf-8") as file:
        for each in taken:
            file.write(json.dumps({"prompt": each.prompt()}) + "\n")
    print("| package | version | licence | functions | taken |\n|---|---|---|---|---|")
    for each in packages:
        count = sum(function.package == each.name for function in taken)
        print(f"| {each.name} | {each.version} | {licence(each)} | {len(by_package[each.name])} | {count} |")


if __name__ == "__main__":
    main()
