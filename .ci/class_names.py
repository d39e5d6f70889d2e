"""A class name has one owner: fails where two modules define the same one, in Python, in C++ or in both.

What mirrors a structure or class of the core in Python may have its name; these are listed.
"""

from __future__ import annotations

import ast
import re
import sys
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
# Of structures and classes of the core: their ctypes structures and handles in native/.
MIRRORS = {"Batch", "DraftRequest", "PackedModel", "Pool", "PoolStatistics", "Segment", "TopTokens", "WatchedBuffer"}
# Of Python, as plain numbers in the core.
_SPECS = {
    "AttentionSpec": "attention_spec",
    "LatentSpec": "attention_spec",
    "CompressedSpec": "compressed_spec",
    "IndexerSpec": "choice_spec",
    "BlockChoiceSpec": "choice_spec",
    "LayerSpec": "spec",
    "MlpSpec": "mlp_spec",
    "RecurrentSpec": "recurrent_spec",
    "NgramSpec": "ngram_spec",
    "HeadSpec": "draft_head",
    "StreamSpec": "stream_spec",
    "AltUpSpec": "stream_spec",
}
_CHOICES = ["ipex_assist/executors/row_choice.py", "ipex_assist/native/operations/batch.h"]
NUMBERS = {
    **{name: [f"ipex_assist/models/{file}.py", "ipex_assist/native/packing/spec.h"] for name, file in _SPECS.items()},
    **dict.fromkeys(("RowChoice", "SamplingRule"), _CHOICES),
    "Taps": ["ipex_assist/models/draft_head.py", "ipex_assist/native/operations/batch.h"],
}
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


def mirrors(name: str, files: list[str]) -> bool:
    """Whether these are a structure or class of the core and its mirror in Python, or a spec and its numbers there."""
    if name in NUMBERS:
        return files == NUMBERS[name]
    in_core = all(file.startswith("ipex_assist/native/") for file in files)
    return name in MIRRORS and len(files) == 2 and in_core and sum(file.endswith(".py") for file in files) == 1


def main() -> int:
    found = owners()
    double = {name: files for name, files in found.items() if len(files) > 1}
    faults = [
        f"{name} is defined in {', '.join(files)}" for name, files in sorted(double.items()) if not mirrors(name, files)
    ]
    faults += [f"{name} is no mirror any more" for name in sorted((MIRRORS | NUMBERS.keys()) - double.keys())]
    print("\n".join(faults) or f"{len(found)} class names have one owner each")
    return bool(faults)


if __name__ == "__main__":
    sys.exit(main())
