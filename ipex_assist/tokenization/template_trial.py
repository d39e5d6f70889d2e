"""Tries a chat template on a conversation, to learn from what it writes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from ipex_assist.tokenization.chat_template import apply_template
from ipex_assist.tokenization.time_limit import run_within

_SECONDS = 1.0  # of a chat template, which may never end


def rendered_with(
    template: str,
    names: Iterable[tuple[str, str]],
    messages: list[dict[str, Any]],
    tools: list[dict[str, Any]] | None = None,
    variables: Mapping[str, Any] | None = None,
) -> str | None:
    """What a chat template makes of a conversation; None if it fails. names: the tokenizer's special tokens."""
    bare = _Bare(template, dict(names))
    try:
        return run_within(_SECONDS, lambda: apply_template(bare, messages, tools, variables))
    except Exception:  # jinja2's errors, and those that templates raise
        return None


@dataclass
class _Bare:
    """As much of a tokenizer as `apply_template` needs."""

    chat_template: str
    special_tokens_map: dict[str, str]

    def apply_chat_template(self, *arguments: Any, **more: Any) -> str:
        """Only asked where jinja2 is too old."""
        raise ValueError("jinja2 is too old")
