"""The picture of the architecture in docs/internals.md: the rooms in the order in which they may import each other.

    python benchmarks/architecture.py           # draw docs/pictures/architecture.svg again
    python benchmarks/architecture.py --check   # exit 1 where it is not what the rooms are

Order and names are those of the import contract in pyproject.toml, which CI proves; what each room is for is the first
line of its package.
"""

from __future__ import annotations

import argparse
import ast
import re
import sys
from html import escape
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PICTURE = ROOT / "docs" / "pictures" / "architecture.svg"
WIDTH, LINE, GAP, NAMES = 1000, 24, 8, 150  # pixels; NAMES: of the column of names
STYLE = """
text { font: 13px system-ui, sans-serif; fill: #1f2328 }
.name { font-weight: 600 }
rect { fill: #f6f8fa; stroke: #8c959f }
path { stroke: #57606a; fill: none }
@media (prefers-color-scheme: dark) {
  text { fill: #e6edf3 }
  rect { fill: #161b22; stroke: #6e7681 }
  path { stroke: #8b949e }
}
"""


def layers() -> list[list[str]]:
    """The rooms, from those that import to those that are imported; those of one list do not know each other."""
    contract = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    found = re.search(r'^type = "layers"\nlayers = \[\n(.*?)^\]', contract, re.MULTILINE | re.DOTALL)
    assert found is not None, "no layers in pyproject.toml"
    return [re.findall(r"ipex_assist\.(\w+)", line) for line in found[1].splitlines()]


def purpose(room: str) -> str:
    """The first sentence that a room says of itself."""
    path = ROOT / "ipex_assist" / room / "__init__.py"
    text = ast.get_docstring(ast.parse((path if path.exists() else path.parent.with_suffix(".py")).read_text("utf-8")))
    assert text, f"{room} does not say what it is for"
    return text.splitlines()[0]


def picture() -> str:
    """The SVG."""
    shapes, top = [], GAP
    for rooms in layers():
        height = LINE * len(rooms) + GAP
        shapes.append(f'<rect x="40" y="{top}" width="{WIDTH - 48}" height="{height}" rx="4"/>')
        for number, room in enumerate(rooms):
            at = top + LINE * (number + 1) - GAP // 2
            shapes.append(f'<text class="name" x="52" y="{at}">{escape(room)}</text>')
            shapes.append(f'<text x="{52 + NAMES}" y="{at}">{escape(purpose(room))}</text>')
        top += height + GAP
    arrow = f"M18 {GAP} V{top - GAP} m-6 -10 l6 10 l6 -10"
    label = '<text x="-14" y="32" transform="rotate(-90)" text-anchor="end">imports</text>'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {top}" role="img">'
    title = "<title>The rooms of ipex_assist: each may import what is below it</title>"
    lines = [head, title, f"<style>{STYLE}</style>", f'<path d="{arrow}"/>', label, *shapes]
    return "\n".join([*lines, "</svg>"]) + "\n"


def main(argv: list[str] | None = None) -> int:
    """Draw the picture, or say whether it is current."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--check", action="store_true")
    if not parser.parse_args(argv).check:
        PICTURE.write_text(picture(), encoding="utf-8")
        return 0
    if PICTURE.read_text(encoding="utf-8") == picture():
        return 0
    print(f"{PICTURE.relative_to(ROOT)} is not current: python benchmarks/architecture.py", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
