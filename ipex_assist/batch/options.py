"""The fields of a line in a file of prompts, and the errors for invalid ones."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ipex_assist.env import options as tables
from ipex_assist.env.errors import UsageError
from ipex_assist.speculative.options import GenerationOptions

ROLES_NEED = "messages must be a list of objects with the texts role and content, which may be a list of parts"


class LineError(ValueError):
    """A line that cannot be run; the message says why, without the line's number."""


OPTIONS = tuple(tables.options_of(GenerationOptions))
FIELDS = ("id", "prompt", "messages", "chat", "images", "model", *OPTIONS)


def check_options(fields: Mapping[str, Any], defaults: GenerationOptions) -> GenerationOptions:
    """The options among `fields`, and the defaults for the others; null counts as absent.

    Raises:
        LineError: the first value that is of the wrong kind or out of range.
    """
    given = {name: fields[name] for name in OPTIONS if fields.get(name) is not None}
    try:
        return GenerationOptions.of(defaults, **given)
    except UsageError as error:
        raise LineError(str(error)) from None


def check_messages(value: Any) -> list[dict[str, Any]]:
    """A conversation as chat templates take it; the objects may have more fields than role and content.

    Raises:
        LineError: `value` is not such a conversation.
    """
    if not isinstance(value, list) or not value:
        raise LineError(ROLES_NEED)
    for message in value:
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            raise LineError(ROLES_NEED)
        if not isinstance(message.get("content"), (str, list)):
            raise LineError(ROLES_NEED)
    return value


def suggestion(name: str) -> str:
    """What somebody who wrote `name` may have meant, ready to be appended to a message."""
    return tables.suggestion(name, FIELDS)
