"""GLM-4.1V and 4.6V: as Qwen2.5-VL, with a tower of their own."""

from __future__ import annotations

from ipex_assist.vision.families.family import Family, VisionPart

FAMILIES = (
    Family("glm4v", "Glm4vModel", {"visual": VisionPart("Glm4vVisionModel")}, on_axes=True),
    Family("glm46v", "Glm46VModel", {"visual": VisionPart()}, on_axes=True),
)
