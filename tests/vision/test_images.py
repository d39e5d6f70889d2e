"""What people send as images: right, or refused in a sentence, before its pixels take memory."""

from __future__ import annotations

import contextlib
import io
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from ipex_assist.env.errors import UsageError
from ipex_assist.vision.images import ImageLimits, read_image

RED, BLUE = (255, 0, 0), (0, 0, 255)


def content(image: Image.Image, form: str = "PNG", **options: Any) -> bytes:
    file = io.BytesIO()
    image.save(file, form, **options)
    return file.getvalue()


def two_colours(mode: str = "RGB") -> Image.Image:
    """Red on the left, blue on the right."""
    image = Image.new("RGB", (8, 4), RED)
    image.paste(BLUE, (4, 0, 8, 4))
    return image.convert(mode)


@pytest.mark.parametrize("form", ["PNG", "BMP", "TIFF", "GIF", "WEBP"])
def test_formats(form: str) -> None:
    """Whatever its name or the type that was said: the content decides."""
    options = {"lossless": True} if form == "WEBP" else {}
    found = read_image(content(two_colours(), form, **options))
    assert (found.mode, found.size) == ("RGB", (8, 4))
    assert found.getpixel((0, 0)) == RED
    assert found.getpixel((7, 3)) == BLUE


def test_a_photo_is_turned_as_its_camera_says() -> None:
    """Text that lies on its side is not read."""
    exif = Image.Exif()
    exif[0x0112] = 6  # its right side is up
    found = read_image(content(two_colours(), "JPEG", exif=exif, quality=95))
    assert found.size == (4, 8)
    top, bottom = found.getpixel((1, 0)), found.getpixel((1, 7))
    assert top[0] > 200 > top[2]
    assert bottom[2] > 200 > bottom[0]


def test_cmyk() -> None:
    """Scanners' and printers' JPEG."""
    found = read_image(content(two_colours("CMYK"), "JPEG", quality=95))
    left, right = found.getpixel((0, 0)), found.getpixel((7, 0))
    assert left[0] > 200 > left[2]
    assert right[2] > 200 > right[0]


def test_sixteen_bits() -> None:
    """Pillow alone would make all of these white."""
    deep = np.array([[0, 257 * 100, 65535]], np.uint16)
    found = read_image(content(Image.fromarray(deep)))
    assert [found.getpixel((x, 0)) for x in range(3)] == [(0, 0, 0), (100, 100, 100), (255, 255, 255)]


def test_transparency_is_white() -> None:
    """Screenshots with a transparent ground, whose hidden colour is often black: black text would be on black."""
    image = Image.new("RGBA", (2, 1), (0, 0, 0, 0))
    image.putpixel((1, 0), (0, 0, 0, 255))
    for each in (image, image.convert("LA")):
        found = read_image(content(each))
        assert [found.getpixel((x, 0)) for x in range(2)] == [(255, 255, 255), (0, 0, 0)]
    palette = image.convert("RGBA").quantize(4)
    assert read_image(content(palette)).getpixel((0, 0)) == (255, 255, 255)


def test_arrays_and_images_of_callers(tmp_path: Path) -> None:
    """From Python."""
    pixels = np.asarray(two_colours())
    file = tmp_path / "picture.png"
    file.write_bytes(content(two_colours()))
    for source in (pixels, two_colours(), two_colours("RGBA"), file, str(file)):
        assert np.array_equal(np.asarray(read_image(source)), pixels)
    assert read_image(pixels[..., :1]).mode == "RGB"
    for wrong in (pixels.astype(np.float32), pixels[..., :2], 3):
        with pytest.raises(UsageError, match="array of uint8"):
            read_image(wrong)
    with pytest.raises(UsageError, match="cannot be read"):
        read_image(tmp_path / "none.png")


def bomb(width: int, height: int) -> bytes:
    """A PNG of a few bytes that says it has so many pixels."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"")) + chunk(b"IEND", b"")


@pytest.mark.parametrize(("width", "height"), [(20_000, 20_000), (2_000_000_000, 1), (9_000, 9_000)])
def test_a_bomb_is_refused_by_its_header(width: int, height: int) -> None:
    """Its pixels would take gigabytes."""
    with pytest.raises(UsageError, match="pixels"):
        read_image(bomb(width, height))


def test_damaged_and_false_files_are_refused() -> None:
    """Each in a sentence, and none by another error."""
    whole = content(two_colours())
    animated = io.BytesIO()
    two_colours().save(animated, "GIF", save_all=True, append_images=[Image.new("RGB", (8, 4), BLUE)])
    pages = io.BytesIO()
    two_colours().save(pages, "TIFF", save_all=True, append_images=[two_colours()])
    noise = np.random.default_rng(0).integers(0, 256, (64, 64, 3), np.uint8)
    photo = content(Image.fromarray(noise), "JPEG")
    for wrong, says in (
        (b"", "no image"),
        (b"%PDF-1.7", "no image"),
        (b"<svg xmlns='http://www.w3.org/2000/svg'/>", "no image"),
        (whole[: len(whole) // 2], "damaged|no image"),
        (photo[: len(photo) // 2], "damaged"),
        (animated.getvalue(), "animation"),
        (pages.getvalue(), "several pages"),
        (content(Image.new("F", (4, 4)), "TIFF"), "floating-point"),
    ):
        with pytest.raises(UsageError, match=says):
            read_image(wrong)


def test_any_damage_is_refused_or_read() -> None:
    """No byte of a file makes another error than a refusal."""
    draw = np.random.default_rng(1)
    for form in ("PNG", "JPEG", "GIF", "WEBP", "TIFF", "BMP"):
        whole = content(two_colours(), form)
        for _ in range(60):
            damaged = bytearray(whole)
            for place in draw.integers(0, len(whole), 3):
                damaged[place] = draw.integers(0, 256)
            with contextlib.suppress(UsageError):
                assert read_image(bytes(damaged), ImageLimits(pixels=1 << 20)).mode == "RGB"


def test_limits() -> None:
    """Of bytes, before anything is decoded."""
    with pytest.raises(UsageError, match="bytes, and may have 100"):
        read_image(content(two_colours(), "BMP"), ImageLimits(bytes=100))
    with pytest.raises(UsageError, match="8 × 4 pixels, and may have 31"):
        read_image(content(two_colours()), ImageLimits(pixels=31))
