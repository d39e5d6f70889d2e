"""Images among the messages of a conversation, and rows of images among its tokens."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from typing import Any

from ipex_assist.env.errors import UsageError
from ipex_assist.executors.image_rows import ImageRows, PromptImages
from ipex_assist.vision.images import ImageSource
from ipex_assist.vision.seen import SeenImage

PART = {"type": "image"}  # as chat templates take it


def has_images(messages: Iterable[dict[str, Any]]) -> bool:
    """Whether any message has a part that is an image."""
    contents = (message.get("content") for message in messages)
    return any(_is_image(part) for content in contents if isinstance(content, list) for part in content)


def _is_image(part: Any) -> bool:
    return isinstance(part, dict) and part.get("type") == PART["type"]


def take_images(
    messages: Iterable[dict[str, Any]], others: Iterable[ImageSource] = ()
) -> tuple[list[dict[str, Any]], list[ImageSource]]:
    """Messages whose images are mere placeholders, and these images in their order.

    An image is a part {"type": "image", "image": …}; without one the next of `others` is it. UsageError where there are
    more of them, or fewer.
    """
    found: list[ImageSource] = []
    left = list(others)
    made = []
    for message in messages:
        content = message.get("content")
        if isinstance(content, list):
            parts = []
            for part in content:
                if _is_image(part):
                    image = part.get("image")
                    if image is None and not left:
                        raise UsageError('an image of the messages is not given: {"type": "image", "image": …}')
                    found.append(left.pop(0) if image is None else image)
                    part = dict(PART)
                parts.append(part)
            message = {**message, "content": parts}
        made.append(message)
    if left:
        raise UsageError(f"{len(left)} more images are given than the messages have places for")
    return made, found


def with_images(
    tokens: Sequence[int], placeholder: int, seen: Sequence[SeenImage]
) -> tuple[list[int], PromptImages | None]:
    """The tokens with as many placeholders as images have rows, and those rows. UsageError for another number."""
    count = tokens.count(placeholder)
    if count != len(seen):
        raise UsageError(
            f"the prompt has {count} places for images (token {placeholder}), and {len(seen)} images are given"
        )
    made: list[int] = []
    images: list[ImageRows] = []
    left = iter(seen)
    for token in tokens:
        if token != placeholder:
            made.append(token)
            continue
        image = next(left)
        images.append(ImageRows(len(made), image.rows, digest(image), image.axes))
        made += [placeholder] * len(image.rows)
    return made, PromptImages(images) if images else None


def digest(image: SeenImage) -> bytes:
    """A hash of an image as the text model gets it."""
    made = hashlib.sha256(image.rows.tobytes())
    made.update(b"" if image.axes is None else image.axes.tobytes())
    return made.digest()
