"""What goes between a model and the process that reads its images: msgpack, each message after its length."""

from __future__ import annotations

from typing import IO, Any, TypeAlias

import msgspec
from msgspec import Struct

_LENGTH = 8  # bytes of a message's length


class TowerSettings(Struct, frozen=True):
    """The first message: the checkpoint's folder, the family of its text model, and how the tower is computed.

    cpus: that the process may use; threads: of its sums, whatever else runs.
    """

    folder: str
    model_type: str
    precision: str
    threads: int
    cpus: list[int]


class ImageFile(Struct, frozen=True, tag="file"):
    """An image as a file's content."""

    content: bytes


class Pixels(Struct, frozen=True, tag="pixels"):
    """An image as (height, width, channels) numbers of 8 bits."""

    content: bytes
    shape: tuple[int, ...]


class ImageOpened(Struct, frozen=True, tag="opened"):
    """It is an image, and its pixels are there: the process waits for `MakeRows`."""


class MakeRows(Struct, frozen=True, tag="see"):
    """Make rows of the image that was opened."""


class SeenRows(Struct, frozen=True, tag="rows"):
    """What was made of an image: float32 (shape), int32 (rows, 3) of axes where the family has them, and its layout."""

    content: bytes
    shape: tuple[int, int]
    axes: bytes | None
    layout: tuple[tuple[str | int, int], ...]


class TowerReady(Struct, frozen=True, tag="loaded"):
    """The process is ready."""


class ImageRefused(Struct, frozen=True, tag="refused"):
    """Why not. wrong: the image itself is."""

    message: str
    wrong: bool


Asked: TypeAlias = ImageFile | Pixels
Reply: TypeAlias = TowerReady | ImageOpened | SeenRows | ImageRefused


def write(stream: IO[bytes], message: Struct) -> None:
    """Send a message."""
    content = msgspec.msgpack.encode(message)
    stream.write(len(content).to_bytes(_LENGTH, "little"))
    stream.write(content)
    stream.flush()


def read(stream: IO[bytes], kind: Any) -> Any:
    """The next message of this kind, one of the types here; None at the end of the stream."""
    head = stream.read(_LENGTH)
    if len(head) < _LENGTH:
        return None
    length = int.from_bytes(head, "little")
    content = stream.read(length)
    return None if len(content) < length else msgspec.msgpack.decode(content, type=kind)
