"""Tells apart what callers from Python give as a prompt: a text, token ids, or the messages of a conversation."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ipex_assist.env.errors import UsageError

KINDS = "a text, a list of token ids, or a list of messages such as {'role': 'user', 'content': 'Hello'}"


def as_lists(prompt: Any) -> Any:
    """An array or tensor of two dimensions, as tokenizers give it, as a list of rows; all else as it is."""
    return prompt.tolist() if getattr(prompt, "ndim", None) == 2 and hasattr(prompt, "tolist") else prompt


def is_one(prompt: Any) -> bool:
    """Whether this is one prompt of any kind, and not a list of prompts."""
    several = isinstance(prompt, (list, tuple)) and len(prompt) > 0 and isinstance(prompt[0], (str, list, tuple))
    return not several


def messages_of(prompt: Any) -> list[dict[str, Any]] | None:
    """The messages of a conversation, as chat templates take them; None where the prompt is none.

    Raises UsageError where one is no object, or lacks its role or its content.
    """
    if not isinstance(prompt, (list, tuple)) or not prompt or not isinstance(prompt[0], Mapping):
        return None
    for number, message in enumerate(prompt, 1):
        if not isinstance(message, Mapping):
            raise UsageError(f"message {number} of the prompt is {_shown(message)}: a prompt is {KINDS}")
        if not isinstance(message.get("role"), str):
            raise UsageError(f"message {number} of the prompt has no role, such as system, user or assistant")
        if message.get("content") is None and not message.get("tool_calls"):
            raise UsageError(f"message {number} of the prompt has no content")
    return [dict(message) for message in prompt]


def check_kind(prompt: Any) -> None:
    """Raise UsageError for what is no prompt of any kind. Token ids may come as an array or a tensor."""
    if isinstance(prompt, Mapping) and "input_ids" in prompt:
        raise UsageError("a prompt is token ids, and not all that a tokenizer returns: give its ['input_ids']")
    if isinstance(prompt, (bytes, bytearray, Mapping, set, frozenset)) or not isinstance(prompt, Iterable):
        raise UsageError(f"a prompt is {KINDS}, and this is {_shown(prompt)}")


def _shown(value: Any) -> str:
    return "None" if value is None else f"of type {type(value).__name__}"
