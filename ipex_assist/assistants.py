"""Which small model assists a target when none is named: one row per family and vocabulary."""

from __future__ import annotations


def canonical_id(source: str) -> str:
    """The hub id that resolves today: TinyLlama's checkpoints moved from PY007/ to TinyLlama/."""
    owner, slash, name = source.partition("/")
    return f"TinyLlama/{name}" if slash and owner == "PY007" and name.startswith("TinyLlama") else source
