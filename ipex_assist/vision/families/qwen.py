"""Qwen2-VL to Qwen3.5: patches merged by the tower itself, rows on three axes, and more of them for further layers."""

from __future__ import annotations

from ipex_assist.vision.families.family import Family, VisionPart


def _family(module: str, model: str, tower: str) -> Family:
    return Family(module, model, {"visual": VisionPart(tower)}, on_axes=True)


FAMILIES = (
    _family("qwen2_vl", "Qwen2VLModel", "Qwen2VisionTransformerPretrainedModel"),
    _family("qwen2_5_vl", "Qwen2_5_VLModel", "Qwen2_5_VisionTransformerPretrainedModel"),
    _family("qwen3_vl", "Qwen3VLModel", "Qwen3VLVisionModel"),
    _family("qwen3_vl_moe", "Qwen3VLMoeModel", "Qwen3VLMoeVisionModel"),
    _family("qwen3_5", "Qwen3_5Model", "Qwen3_5VisionModel"),
    _family("qwen3_5_moe", "Qwen3_5MoeModel", "Qwen3_5MoeVisionModel"),
)
