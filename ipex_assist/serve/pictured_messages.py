"""The images of a conversation: what the chat template is given in their place, and their contents."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from ipex_assist.env.errors import UsageError
from ipex_assist.serve.errors import ApiError
from ipex_assist.serve.image_hosts import ImageHosts, is_elsewhere
from ipex_assist.serve.protocol.common import left_out
from ipex_assist.serve.protocol.images import joined, text_of
from ipex_assist.vision.messages import PART


class Address(NamedTuple):
    """An image of a request: a data: URL, or where it can be fetched from. where: the part of the body."""

    url: str
    where: str

    @classmethod
    def of(cls, part: dict[str, Any], message: str) -> Address:
        """That of a part of a message."""
        return cls(part["image"] or "", f"{message}.content.{part['place']}")

    @property
    def is_here(self) -> bool:
        """Whether the request has it."""
        return not is_elsewhere(self.url)

    def content(self, hosts: ImageHosts) -> bytes:
        """What it holds. Raises ApiError where it is no image of the request's, nor of one of the hosts."""
        try:
            return hosts.content(self.url)
        except UsageError as error:
            raise ApiError(400, f"{self.where}: {error}", param=self.where) from None


def pictured(
    messages: Iterable[dict[str, Any]], sees: bool, field: str = "messages"
) -> tuple[list[dict[str, Any]], list[Address]]:
    """The messages with placeholders for their images, and where these are, in their order.

    sees: whether the model takes images; of one that does not, results of tools say that one was left out. Those of
    results are the user's next words, as most templates know texts alone for results. field: of the body, for errors.
    Raises ApiError for images elsewhere.
    """
    made: list[dict[str, Any]] = []
    images: list[Address] = []
    waiting: list[Address] = []  # of results
    for number, message in enumerate(messages):
        content = message.get("content")
        own = [part for part in content if part["type"] == PART["type"]] if isinstance(content, list) else []
        if message["role"] == "tool":
            waiting += [Address.of(part, f"{field}.{number}") for part in own] if sees else []
            says = "[an image, which follows]" if sees else left_out(PART)
            made.append({**message, "content": "\n".join(filter(None, [text_of(content), *[says] * len(own)]))})
            continue
        before = [dict(PART) for _ in waiting]
        images, waiting = images + waiting, []
        if own:
            _check(message["role"], sees, f"{field}.{number}.content.{own[0]['place']}")
            images += [Address.of(part, f"{field}.{number}") for part in own]
            content = [dict(PART) if part["type"] == PART["type"] else part for part in message["content"]]
        if before and message["role"] != "user":
            made.append({"role": "user", "content": before})
        elif before:
            content = joined(before, content)
        made.append({**message, "content": content})
    if waiting:
        made.append({"role": "user", "content": [dict(PART) for _ in waiting]})
    return made, images + waiting


def _check(role: str, sees: bool, where: str) -> None:
    if not sees:
        raise ApiError(400, f"{where}: the model reads text alone: leave out this image", param=where)
    if role != "user":
        raise ApiError(400, f"{where}: images are the user's, or results of tools, and not the {role}'s", param=where)
