"""The images of a conversation: what the chat template is given in their place, and their contents."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ipex_assist.env.errors import UsageError
from ipex_assist.serve.errors import ApiError
from ipex_assist.serve.protocol.common import left_out
from ipex_assist.serve.protocol.images import joined, text_of
from ipex_assist.vision.images import data_url_content
from ipex_assist.vision.messages import PART


def pictured(
    messages: Iterable[dict[str, Any]], sees: bool, field: str = "messages"
) -> tuple[list[dict[str, Any]], list[bytes]]:
    """The messages with placeholders for their images, and these in their order.

    sees: whether the model takes images; of one that does not, results of tools say that one was left out. Those of
    results are the user's next words, as most templates know texts alone for results. field: of the body, for errors.
    Raises ApiError for images elsewhere, and for those that are not in the request.
    """
    made: list[dict[str, Any]] = []
    images: list[bytes] = []
    waiting: list[bytes] = []  # of results
    for number, message in enumerate(messages):
        content = message.get("content")
        own = [part for part in content if part["type"] == PART["type"]] if isinstance(content, list) else []
        if message["role"] == "tool":
            waiting += [_content(part, f"{field}.{number}") for part in own] if sees else []
            says = "[an image, which follows]" if sees else left_out(PART)
            made.append({**message, "content": "\n".join(filter(None, [text_of(content), *[says] * len(own)]))})
            continue
        before = [dict(PART) for _ in waiting]
        images, waiting = images + waiting, []
        if own:
            _check(message["role"], sees, f"{field}.{number}.content.{own[0]['place']}")
            images += [_content(part, f"{field}.{number}") for part in own]
            content = [dict(PART) if part["type"] == PART["type"] else part for part in message["content"]]
        if before and message["role"] != "user":
            made.append({"role": "user", "content": before})
        elif before:
            content = joined(before, content)
        made.append({**message, "content": content})
    if waiting:
        made.append({"role": "user", "content": [dict(PART) for _ in waiting]})
    return made, images + waiting


def _content(part: dict[str, Any], message: str) -> bytes:
    where = f"{message}.content.{part['place']}"
    try:
        return data_url_content(part["image"] or "")
    except UsageError as error:
        raise ApiError(400, f"{where}: {error}", param=where) from None


def _check(role: str, sees: bool, where: str) -> None:
    if not sees:
        raise ApiError(400, f"{where}: the model reads text alone: leave out this image", param=where)
    if role != "user":
        raise ApiError(400, f"{where}: images are the user's, or results of tools, and not the {role}'s", param=where)
