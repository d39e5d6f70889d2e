"""The tables of docs/tools.md are those of the code."""

from __future__ import annotations

from pathlib import Path

import pytest

from ipex_assist.serve.tools.dialects import DIALECTS, written
from ipex_assist.tokenization.thinking import FORMATS

pytestmark = pytest.mark.one_stack

PAGE = Path(__file__).resolve().parents[2] / "docs" / "tools.md"


def cell(text: str) -> str:
    """A text as code in a table."""
    return "`" + text.replace("\n", "⏎").replace("|", "\\|") + "`"


def dialect_rows() -> list[str]:
    """Each dialect with a call of `f` that has a text and a number."""
    made = []
    for dialect in DIALECTS:
        if dialect.models:
            call = written(dialect, [("f", {"a": "x", "n": 1})])
            made.append(f"| {dialect.name} | {dialect.models} | {cell(call)} |")
    return made


def format_rows() -> list[str]:
    return [f"| {f.name} | {f.models} | {cell(f.opened)} | {cell(f.closed)} |" for f in FORMATS]


@pytest.mark.parametrize("rows", [dialect_rows(), format_rows()], ids=["dialects", "formats"])
def test_the_tables_are_the_codes_own(rows: list[str]) -> None:
    """Where this fails, put these rows in the page: python tests/docs/test_tool_tables.py prints them."""
    lines = PAGE.read_text(encoding="utf-8").splitlines()
    start = lines.index(rows[0])
    assert lines[start : start + len(rows)] == rows
    assert not lines[start + len(rows)].startswith("|")


if __name__ == "__main__":
    print("\n".join([*dialect_rows(), "", *format_rows()]))
