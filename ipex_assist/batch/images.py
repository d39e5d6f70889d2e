"""Images of a line: which they are, and their contents when the line's turn comes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ipex_assist.batch.options import LineError
from ipex_assist.env.errors import UsageError
from ipex_assist.vision.images import data_url_content, file_content
from ipex_assist.vision.messages import PART

IMAGES_ARE = "images must be a list of names of files below the folder of this file, or of data: URLs"


def line_images(fields: Mapping[str, Any]) -> tuple[str, ...]:
    """The field `images`. Raises LineError for another thing."""
    found = fields.get("images")
    if found is None:
        return ()
    if not isinstance(found, list) or not all(isinstance(each, str) and each for each in found):
        raise LineError(IMAGES_ARE)
    return tuple(found)


def placed_images(messages: list[dict[str, Any]]) -> tuple[list[dict[str, Any]], tuple[str, ...]]:
    """Messages with placeholders for images, and what these are, by OpenAI's names of parts or transformers'.

    Raises LineError for parts of another kind.
    """
    made, images = [], list[str]()
    for message in messages:
        content = message["content"]
        if isinstance(content, list):
            parts = []
            for part in content:
                kind = part.get("type") if isinstance(part, dict) else None
                if kind == "text" and isinstance(part.get("text"), str):
                    parts.append(part)
                    continue
                url = part.get("image_url") if kind == "image_url" else part.get("image") if kind == "image" else None
                url = url.get("url") if isinstance(url, dict) else url
                if not isinstance(url, str) or not url:
                    raise LineError(
                        'a part of a message must be {"type": "text", "text": …} or {"type": "image", "image": "FILE"}'
                    )
                images.append(url)
                parts.append(dict(PART))
            message = {**message, "content": parts}
        made.append(message)
    return made, tuple(images)


def contents(images: tuple[str, ...], folder: Path) -> list[bytes]:
    """What these hold. Raises LineError for a file that is not below the folder, or cannot be read."""
    found = []
    for each in images:
        try:
            if each.startswith("data:"):
                found.append(data_url_content(each))
                continue
            path = (folder / each).resolve()
            if not path.is_relative_to(folder.resolve()):
                raise LineError(f"the image {each} is not below {folder}, where the file of prompts is")
            found.append(file_content(path))
        except UsageError as error:
            raise LineError(str(error)) from None
    return found
