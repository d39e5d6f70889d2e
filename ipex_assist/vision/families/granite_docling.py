"""Granite for documents: SigLIP on tiles of a page and on the whole of it, and rows for further layers.

How many rows a tile has is the image processor's to say (`fine_route`); nothing else decides it in transformers either.
"""

from __future__ import annotations

from typing import Any

from ipex_assist.vision.families.family import Family, Layout, VisionPart
from ipex_assist.vision.families.idefics3 import in_tiles


def _layout(config: Any, given: Any, rows: int) -> Layout:
    if int(given["rows"][0][0]) * int(given["cols"][0][0]) > 1:
        return in_tiles(config, given, rows)
    return (("<fake_token_around_image><row_1_col_1>", rows), ("\n", 0))


def _fields(config: Any) -> dict[str, Any]:
    vision = config.vision_config
    return {
        "image_seq_len": (vision.image_size // vision.patch_size // vision.scale_factor) ** 2,
        "density_router": None,
    }


FAMILIES = (
    Family(
        "granite_docling",
        "GraniteDoclingModel",
        {"vision_model": VisionPart("GraniteDoclingVisionModel")},
        given=("pixel_values", "pixel_attention_mask", "tile_fine_mask"),
        layout=_layout,
        fields=_fields,
        factor="embedding_multiplier",
    ),
)
