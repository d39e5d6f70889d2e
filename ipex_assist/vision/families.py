"""Which text models see, and by what: the vision model that transformers has for it, and its names in a checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Family:
    """module, tower: transformers' vision model, by the module of its family. prefixes: of its tensors' names.

    image_token: the key of config.json that has the placeholder's id.
    """

    module: str
    tower: str
    prefixes: tuple[str, ...] = ("model.visual.", "visual.")
    image_token: str = "image_token_id"

    def placeholder(self, config: Mapping[str, Any]) -> int | None:
        """The token that each row of an image stands for; None where a config names none."""
        found = config.get(self.image_token)
        return found if type(found) is int else None


FAMILIES = {
    each.module: each
    for each in (
        Family("qwen2_vl", "Qwen2VisionTransformerPretrainedModel"),
        Family("qwen2_5_vl", "Qwen2_5_VisionTransformerPretrainedModel"),
        Family("qwen3_vl", "Qwen3VLVisionModel"),
        Family("qwen3_vl_moe", "Qwen3VLMoeVisionModel"),
        Family("qwen3_5", "Qwen3_5VisionModel"),
        Family("qwen3_5_moe", "Qwen3_5MoeVisionModel"),
    )
}
