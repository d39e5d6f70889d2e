"""Images in request bodies, by the names that each form of the API has for them. They come in the request itself.

What they hold is looked at when it is known that the model takes images (pictured_messages.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from pydantic import Discriminator, Field

from ipex_assist.serve.protocol.common import RequestBody, left_out

KINDS = ("image_url", "input_image", "image")
TEXTS = ("text", "input_text", "output_text")


class ImageUrlPart(RequestBody):
    """Of /v1/chat/completions. image_url: a data: URL, or {"url": …}."""

    type: Literal["image_url"]
    image_url: Any = Field(None, description="a data: URL, or an object with one as its url")


class InputImage(RequestBody):
    """Of /v1/responses."""

    type: Literal["input_image"]
    image_url: Any = Field(None, description="a data: URL")


class ImageBlock(RequestBody):
    """Of /v1/messages. The type of the image is that of its content, whatever media_type says."""

    type: Literal["image"]
    source: Any = Field(None, description='{"type": "base64", "media_type": …, "data": …}')


def url_of(part: Any) -> str | None:
    """Where an image part says that it is, its own content as a data: URL; None where that is nowhere, or no image."""
    given = part if isinstance(part, dict) else vars(part)
    if given.get("type") not in KINDS:
        return None
    source = given.get("source") if given["type"] == "image" else given.get("image_url")
    if isinstance(source, dict):
        data = source.get("data")
        source = f"data:;base64,{data}" if isinstance(data, str) and data else source.get("url")
    return source if isinstance(source, str) and source else None


def is_here(part: Any) -> bool:
    """Whether a part is an image whose content is in the request."""
    return isinstance(part, dict) and (url_of(part) or "").startswith("data:")


def texts_and_images(parts: str | list[Any] | None) -> Any:
    """What came of a call: its parts that are neither texts nor images in the request become sentences, so that an
    agent that looked at a file can go on."""
    if not isinstance(parts, list):
        return parts
    return [part if is_here(part) or _is_text(part) else {"type": "text", "text": left_out(part)} for part in parts]


def _is_text(part: Any) -> bool:
    """Whether it is a text, or so wrong that the error of one is to be said."""
    if not isinstance(part, dict) or not isinstance(part.get("type"), str):
        return True
    return part["type"] in TEXTS or isinstance(part.get("text"), str)


def text_or_image(image: str) -> Discriminator:
    """Tags the parts whose type is `image` as "[image]"; all others are read as "[text]", which says what is wrong."""

    def tag(part: Any) -> str:
        kind = part.get("type") if isinstance(part, dict) else getattr(part, "type", None)
        return "[image]" if kind == image else "[text]"

    return Discriminator(tag)


def for_template(parts: str | Sequence[Any] | None) -> Any:
    """The content of a message as chat templates read it: texts by lines, and images, if there are any, among them.

    place: which of the parts an image is.
    """
    if not isinstance(parts, (list, tuple)):
        return parts or ""
    made: list[dict[str, Any]] = []
    for place, part in enumerate(parts):
        if part.type in KINDS:
            made.append({"type": "image", "image": url_of(part), "place": place})
        elif made and made[-1]["type"] == "text":
            made[-1] = {"type": "text", "text": f"{made[-1]['text']}\n{part.text}"}
        else:
            made.append({"type": "text", "text": part.text})
    if all(part["type"] == "text" for part in made):
        return "".join(part["text"] for part in made)
    return made


def joined(first: Any, second: Any) -> Any:
    """Two contents of messages as one."""
    if isinstance(first, str) and isinstance(second, str):
        return f"{first}\n{second}"
    return [*_listed(first), *_listed(second)]


def _listed(content: Any) -> list[dict[str, Any]]:
    return [{"type": "text", "text": content}] if isinstance(content, str) else list(content)


def text_of(content: Any) -> str:
    """The texts of a message's content."""
    if isinstance(content, str):
        return content
    return "\n".join(part["text"] for part in content if part["type"] == "text")
