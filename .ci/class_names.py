"""A class name has one owner: fails where two modules define the same one, in Python, in C++ or in both.

A ctypes structure mirrors one of the C ABI and has its name; these are listed. STILL_DOUBLE lists names that have two
owners yet: it may only become shorter.
"""

from __future__ import annotations

import ast
import re
import sys
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
MIRRORS = {"Batch", "GreedyDraft", "Segment", "TopTokens"}  # of C structures, in native/
STILL_DOUBLE: set[str] = {"Kernels", "Layer", "Model", "PassThreads", "Pool", "Rows", "Statistics", "_Instance"}
CLASS_IN_C = re.compile(
    r"^(?:class|struct)\s+(?:alignas\([^)]*\)\s*)?(\w+)\s*(?:final\s*)?(?::[^:{;][^{;]*)?\{", re.MULTILINE
)


def python_classes(path: Path) -> set[str]:
    """Names of the classes a module defines, not within functions or other classes."""
    return {node.name for node in ast.parse(path.read_text(encoding="utf-8")).body if isinstance(node, ast.ClassDef)}


def owners() -> dict[str, list[str]]:
    """The files that define each class. env/ and launch/ are links inside ipex_assist/: they count once."""
    found = defaultdict(list)
    for folder in ("ipex_assist", "env", "launch"):
        for path in sorted((ROOT / folder).rglob("*")):
            if path.suffix == ".py" and path.resolve() == path:
                names = python_classes(path)
            elif path.suffix in (".h", ".cpp"):
                names = set(CLASS_IN_C.findall(path.read_text(encoding="utf-8")))
            else:
                continue
            for name in names:
                found[name].append(str(path.relative_to(ROOT)))
    return found


def mirrors(files: list[str]) -> bool:
    """Whether these are a structure of the core and its mirror in Python."""
    return (
        len(files) == 2
        and all(file.startswith("ipex_assist/native/") for file in files)
        and sum(file.endswith(".py") for file in files) == 1
    )


def main() -> int:
    found = owners()
    double = {name: files for name, files in found.items() if len(files) > 1}
    faults = [
        f"{name} is defined in {', '.join(files)}"
        for name, files in sorted(double.items())
        if name not in STILL_DOUBLE and not (name in MIRRORS and mirrors(files))
    ]
    faults += [f"{name} has one owner now: take it from STILL_DOUBLE" for name in sorted(STILL_DOUBLE - double.keys())]
    faults += [f"{name} is no mirror any more: take it from MIRRORS" for name in sorted(MIRRORS - double.keys())]
    print("\n".join(faults) or f"{len(found)} class names have one owner each, but for {len(STILL_DOUBLE)}")
    return bool(faults)


if __name__ == "__main__":
    sys.exit(main())
