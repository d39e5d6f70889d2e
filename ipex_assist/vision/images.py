"""Images as they come from people: right, or refused in a sentence. Pillow is imported only here, when one comes."""

from __future__ import annotations

import base64
import binascii
import io
import os
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from ipex_assist.env.errors import UsageError
from ipex_assist.env.versions import install_command

if TYPE_CHECKING:
    from PIL.Image import Image

ImageSource: TypeAlias = "bytes | str | os.PathLike[str] | Image | Any"  # any: an array (height, width[, 3 or 4])

FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF")
_DEEP = 257  # 16 bits to 8


@dataclass(frozen=True)
class ImageLimits:
    """What an image may be: bytes of its file, its pixels, the seconds that reading it takes, and those of a prompt.

    opening_seconds: until its pixels are there.
    """

    bytes: int = 32 << 20
    pixels: int = 64 << 20
    opening_seconds: float = 60.0
    seconds: float = 300.0
    images: int = 64


LIMITS = ImageLimits()


def read_image(source: ImageSource, limits: ImageLimits = LIMITS) -> Image:
    """The image in RGB, upright. source: its file's content, a path, a PIL image or an array of 8 bits a channel.

    Raises UsageError for what is no image, or is damaged, moves, or exceeds the limits, before its pixels are there.
    """
    try:
        from PIL import Image
    except ImportError:
        raise UsageError(f"images need Pillow: type {install_command('vision')}") from None

    if isinstance(source, Image.Image):
        return _upright(_checked(source, limits))
    if isinstance(source, (str, os.PathLike)):
        source = file_content(Path(source), limits)
    if not isinstance(source, (bytes, bytearray, memoryview)):
        return _upright(_checked(_from_array(source), limits))
    if len(source) > limits.bytes:
        raise UsageError(f"an image has {len(source):,} bytes, and may have {limits.bytes:,}: make it smaller")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of sizes, which are limited here
        try:
            opened = Image.open(io.BytesIO(source), formats=FORMATS)
        except Image.DecompressionBombError:
            raise UsageError(f"an image has more than the {limits.pixels:,} pixels that one may have") from None
        except Exception:  # whatever its plugins raise
            raise UsageError(
                f"that is no image: it must be a file in {', '.join(FORMATS[:-1])} or {FORMATS[-1]}"
            ) from None
        checked = _checked(opened, limits)
        try:
            checked.load()
            return _upright(checked)
        except UsageError:
            raise
        except Exception as error:
            raise UsageError(f"an image cannot be read, its file is damaged ({error})") from None


def data_url_content(url: str) -> bytes:
    """What a data: URL holds. Raises UsageError for another one, or where that is no base64."""
    head, comma, data = url.partition(",")
    if not head.startswith("data:") or not comma:
        raise UsageError("nothing is fetched: send the image itself, as data:image/png;base64,…")
    if not head.endswith(";base64"):
        raise UsageError("a data: URL of an image has its content in base64: data:image/png;base64,…")
    try:
        return base64.b64decode(data, validate=True)
    except (binascii.Error, ValueError):
        raise UsageError("the base64 of an image is damaged") from None


def data_url(content: bytes) -> str:
    """An image as requests have it; its type is looked up in the content."""
    return f"data:image/*;base64,{base64.b64encode(content).decode()}"


def file_content(path: Path, limits: ImageLimits = LIMITS) -> bytes:
    """What a file holds. Raises UsageError where it cannot be read, or is larger than an image may be."""
    try:
        if path.stat().st_size > limits.bytes:
            raise UsageError(f"{path} has {path.stat().st_size:,} bytes, and an image may have {limits.bytes:,}")
        return path.read_bytes()
    except OSError as error:
        raise UsageError(f"the image {path} cannot be read: {error.strerror}") from None


def _from_array(array: Any) -> Image:
    import numpy as np
    from PIL import Image

    found = np.asarray(array)
    if found.dtype != np.uint8 or found.ndim not in (2, 3) or (found.ndim == 3 and found.shape[2] not in (1, 3, 4)):
        raise UsageError(
            f"an image of type {type(array).__name__}: give a path, a file's content, a PIL image or an array of uint8 "
            "(height, width, 3)"
        )
    return Image.fromarray(found[..., 0] if found.ndim == 3 and found.shape[2] == 1 else np.ascontiguousarray(found))


def _checked(image: Image, limits: ImageLimits) -> Image:
    width, height = image.size
    if width < 1 or height < 1:
        raise UsageError(f"an image of {width} × {height} pixels has none")
    if width * height > limits.pixels:
        raise UsageError(f"an image has {width} × {height} pixels, and may have {limits.pixels:,}: make it smaller")
    if getattr(image, "is_animated", False):
        raise UsageError(
            "an image is an animation, or has several pages: send the frames or pages that count, one by one"
        )
    return image


def _upright(image: Image) -> Image:
    """In RGB, as its EXIF data turn it, on white where it is transparent."""
    import numpy as np
    from PIL import Image, ImageOps

    image = ImageOps.exif_transpose(image)
    if image.mode.startswith("I"):  # 16 bits a pixel, which Pillow would cut off at 255
        deep = np.asarray(image).astype(np.int64)
        return Image.fromarray((deep.clip(0, 65535) // _DEEP).astype(np.uint8)).convert("RGB")
    if image.mode == "F":
        raise UsageError("an image has floating-point pixels: save it with 8 bits a channel")
    if image.mode in ("RGBA", "LA", "PA", "La", "RGBa") or "transparency" in image.info:
        image = image.convert("RGBA")
        ground = Image.new("RGBA", image.size, "white")
        return Image.alpha_composite(ground, image).convert("RGB")
    return image.convert("RGB")
