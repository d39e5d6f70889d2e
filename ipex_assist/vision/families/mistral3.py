"""Mistral Small 3.1 to 4, and Ministral 3: Pixtral, and a projector that merges patches; lines end with a token."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ipex_assist.vision.families.family import Family, Layout, VisionPart


def _patch(config: Any) -> int:
    """Pixels of a row's side."""
    return int(config.vision_config.patch_size) * int(config.spatial_merge_size)


def _options(config: Any) -> Mapping[str, Any]:
    return {"patch_size": {"height": _patch(config), "width": _patch(config)}}


def _layout(config: Any, given: Any, rows: int) -> Layout:
    across = int(given["image_sizes"][0][1]) // _patch(config)
    breaks = ["[IMG_BREAK]"] * (rows // across - 1)
    return *((text, across) for text in ("", *breaks)), ("[IMG_END]", 0)


FAMILIES = (
    Family(
        "mistral3",
        "Mistral3Model",
        {
            "vision_tower": VisionPart(),
            "multi_modal_projector": VisionPart("Mistral3MultiModalProjector", of=()),
        },
        given=("pixel_values", "image_sizes"),
        options=_options,
        layout=_layout,
    ),
)
