"""Gemma 3 and 4: a tower and a projector, and rows of an image that see each other."""

from __future__ import annotations

from typing import Any

from ipex_assist.vision.families.family import Family, Layout, VisionPart


def _layout(config: Any, given: Any, rows: int) -> Layout:
    return (int(config.boi_token_id), rows), (int(config.eoi_token_id), 0)


FAMILIES = (
    Family(
        "gemma3",
        "Gemma3Model",
        {
            "vision_tower": VisionPart(),
            "multi_modal_projector": VisionPart("Gemma3MultiModalProjector", of=()),
        },
        given=("pixel_values",),
        options=lambda config: {"do_pan_and_scan": False},
        layout=_layout,
        place="<start_of_image>",  # with empty lines around it: tokenization/tokenizer.py
    ),
    Family(
        "gemma4",
        "Gemma4Model",
        {
            "vision_tower": VisionPart(),
            "embed_vision": VisionPart("Gemma4MultimodalEmbedder", of=("vision_config", "text_config")),
        },
        given=("pixel_values", "image_position_ids"),
        layout=_layout,
        fed="pad_token_id",
    ),
)
