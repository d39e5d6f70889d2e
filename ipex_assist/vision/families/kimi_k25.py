"""Kimi K2.5 and K2.6: MoonViT, and a projector that merges patches."""

from __future__ import annotations

from ipex_assist.vision.families.family import Family, VisionPart

FAMILIES = (
    Family(
        "kimi_k25",
        "Kimi_K25Model",
        {
            "vision_tower": VisionPart("Kimi_K25VisionModel"),
            "mm_projector": VisionPart("Kimi_K25MultimodalProjection", of=()),
        },
    ),
)
