"""Qwen3-VL: Qwen3 beside a vision model."""

from __future__ import annotations

from dataclasses import replace

from ipex_assist.models import qwen3
from ipex_assist.models.common import rope, text_part
from ipex_assist.models.config import Config
from ipex_assist.models.names import inside
from ipex_assist.models.spec import DecoderSpec
from ipex_assist.models.weights import Source

ARCHITECTURE = "Qwen3VLForConditionalGeneration"
EXAMPLES = ("Qwen/Qwen3-VL-8B-Instruct", "Qwen/Qwen3-VL-32B-Instruct")
NAMES = qwen3.NAMES


def spec(config: Config) -> DecoderSpec:
    """That of the text part."""
    text = text_part(config)
    ropes, layers = (rope(text, 5e5),), embedding_layers(config)
    return replace(qwen3.spec(text), model_type="qwen3_vl", ropes=ropes, embedding_layers=layers)


def embedding_layers(config: Config) -> int:
    """How many layers get more of images than the first one's input."""
    return len(Config(config.part("vision_config")).integers("deepstack_visual_indexes"))


def weights(spec: DecoderSpec) -> dict[str, Source]:
    """Qwen3's names, in the place of a part."""
    return inside(qwen3.weights(spec))
