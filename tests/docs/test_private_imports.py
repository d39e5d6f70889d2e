"""Names of other packages that begin with an underscore: a list, since each of them may be gone in the next version."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

pytestmark = pytest.mark.one_stack

ROOT = Path(__file__).parents[2]
# By name, why there is no public one, and what happens where it is gone.
KNOWN = {
    "torch.ops.mkldnn._is_mkldnn_bf16_supported": "the torch executor's kernels: it uses torch's linears instead",
    "torch.ops.mkldnn._linear_pointwise": "the same",
    "torch.ops.mkldnn._reorder_linear_weight": "the same",
    "optimum.intel.ipex.modeling_base._IPEX_SUPPORT_MODEL_TYPES": "optimum-intel is pinned by the extra `ipex`",
}
# Modules whose insides we derive from, although their names are public: their versions have an upper bound.
BOUNDED = {"uvicorn": "serve/http_protocol.py derives from its protocols"}


def private_names(source: str) -> Iterator[str]:
    """Full names with a part that begins with one underscore, of packages that are neither ours nor Python's."""
    tree = ast.parse(source)
    named: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:  # `import a.b` names a
                named[alias.asname or alias.name.partition(".")[0]] = (
                    alias.name if alias.asname else alias.name.partition(".")[0]
                )
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            named |= {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
    found = set(named.values())
    for node in ast.walk(tree):
        parts: list[str] = []
        while isinstance(node, ast.Attribute):
            parts.insert(0, node.attr)
            node = node.value
        if parts and isinstance(node, ast.Name) and node.id in named:
            found.add(".".join([named[node.id], *parts]))
    for name in sorted(found):  # each up to the first part that is private
        package, *rest = name.split(".")
        if package in {"ipex_assist", *sys.stdlib_module_names}:
            continue
        private = [part.startswith("_") and not part.startswith("__") for part in rest]
        if any(private):
            yield ".".join([package, *rest[: private.index(True) + 1]])


def test_it_finds_them() -> None:
    """As a name that is imported, as an attribute of a module, and of a module of another name."""
    source = "import a.b, os\nimport c as d\nfrom e import _f\nfrom g import h\na.b._x()\nd._y\nh.__version__\nos._exit"
    assert list(private_names(source)) == ["a.b._x", "c._y", "e._f"]


def test_private_names_are_known() -> None:
    """One more is a decision, with what happens where it is gone; one that is no longer used leaves the list."""
    found = {
        name
        for folder in ("ipex_assist", "env", "launch")
        for path in (ROOT / folder).rglob("*.py")
        for name in private_names(path.read_text(encoding="utf-8"))
    }
    assert found == set(KNOWN)


def test_packages_whose_insides_are_used_are_bounded() -> None:
    """A new version of them is tried before it is allowed."""
    setup = (ROOT / "setup.py").read_text(encoding="utf-8")
    for package in BOUNDED:
        assert f'"{package}>=' in setup
        assert "<" in setup.partition(f'"{package}>=')[2].partition('"')[0]
