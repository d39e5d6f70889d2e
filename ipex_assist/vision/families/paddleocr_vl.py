"""PaddleOCR-VL: SigLIP of any resolution, a projector that merges patches, and rows on three axes."""

from __future__ import annotations

from ipex_assist.vision.families.family import Family, VisionPart

FAMILIES = (
    Family(
        "paddleocr_vl",
        "PaddleOCRVLModel",
        {
            "visual": VisionPart("PaddleOCRVisionModel"),
            "projector": VisionPart("PaddleOCRProjector", names=("mlp_AR",), of=()),
        },
        on_axes=True,
    ),
)
