"""InternVL 2.5 to 3.5, as transformers has them: InternViT on tiles of an image and the whole, and a projector."""

from __future__ import annotations

from typing import Any

from ipex_assist.vision.families.family import Family, Layout, VisionPart


def _layout(config: Any, given: Any, rows: int) -> Layout:
    return ("<img>", rows), ("</img>", 0)


FAMILIES = (
    Family(
        "internvl",
        "InternVLModel",
        {
            "vision_tower": VisionPart(),
            "multi_modal_projector": VisionPart("InternVLMultiModalProjector", of=()),
        },
        given=("pixel_values",),
        options=lambda config: {"crop_to_patches": True},
        layout=_layout,
    ),
)
