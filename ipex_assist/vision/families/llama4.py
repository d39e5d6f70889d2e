"""Llama 4: a tower on tiles of an image and the whole of it, and a projector behind it."""

from __future__ import annotations

from typing import Any

from ipex_assist.vision.families.family import Family, Layout, VisionPart

_END = "<|image_end|>"


def _layout(config: Any, given: Any, rows: int) -> Layout:
    down, across = (int(each) for each in given["aspect_ratios"][0])
    each = rows // len(given["pixel_values"])
    made: list[tuple[str | int, int]] = []
    before = "<|image_start|>"
    if down * across > 1:
        for _ in range(down):
            for x in range(across):
                made.append((before, each))
                before = "<|tile_x_separator|>" if x < across - 1 else "<|tile_y_separator|>"
    return *made, (f"{before}<|image|>", each), (_END, 0)


FAMILIES = (
    Family(
        "llama4",
        "Llama4ForConditionalGeneration",
        {
            "vision_model": VisionPart("Llama4VisionModel"),
            "multi_modal_projector": VisionPart("Llama4MultiModalProjector", of=()),
        },
        given=("pixel_values",),
        projector="multi_modal_projector",
        layout=_layout,
        place="<|image|>",
    ),
)
