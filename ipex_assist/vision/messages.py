"""Images among the messages of a conversation, and rows of images among its tokens."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ipex_assist.env.errors import UsageError
from ipex_assist.executors.image_rows import ImageRows, PromptImages
from ipex_assist.executors.rope import Floats
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


@dataclass(frozen=True)
class ImageTokens:
    """placeholder: what stands for an image in a prompt. fed: what enters the text model with each of its rows.

    whole: whether rows of an image see each other.
    """

    placeholder: int
    fed: int
    whole: bool = False


def with_images(
    tokens: Sequence[int], of: ImageTokens, seen: Sequence[SeenImage], encode: Callable[[str], list[int]]
) -> tuple[list[int], PromptImages | None]:
    """The tokens with what images are in their places, and the rows. UsageError for another number of places.

    encode: the tokens of a text of a layout.
    """
    places = tokens.count(of.placeholder)
    if places != len(seen):
        raise UsageError(
            f"the prompt has {places} places for images (token {of.placeholder}), and {len(seen)} images are given"
        )
    made: list[int] = []
    images: list[ImageRows] = []
    left = iter(seen)
    for token in tokens:
        if token != of.placeholder:
            made.append(token)
            continue
        image, start = next(left), 0
        for before, count in image.pieces:
            made += [before] if isinstance(before, int) else encode(before) if before else []
            end = start + count
            if not count:
                continue
            rows, axes = image.rows[start:end], None if image.axes is None else image.axes[start:end]
            images.append(ImageRows(len(made), rows, digest(rows, axes), axes))
            made += [of.fed] * count
            start = end
    return made, PromptImages(images, of.whole) if images else None


def digest(rows: Floats, axes: NDArray[np.int32] | None) -> bytes:
    """A hash of rows as the text model gets them."""
    made = hashlib.sha256(rows.tobytes())
    made.update(b"" if axes is None else axes.tobytes())
    return made.digest()
