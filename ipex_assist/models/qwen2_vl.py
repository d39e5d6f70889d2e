"""Qwen2-VL: Qwen2 beside a vision model."""

from __future__ import annotations

from dataclasses import replace

from ipex_assist.models import qwen2
from ipex_assist.models.common import rope, text_part
from ipex_assist.models.config import Config
from ipex_assist.models.names import inside
from ipex_assist.models.spec import DecoderSpec
from ipex_assist.models.weights import Source

ARCHITECTURE = "Qwen2VLForConditionalGeneration"
EXAMPLES = ("Qwen/Qwen2-VL-7B-Instruct", "Qwen/Qwen2-VL-72B-Instruct")
NAMES = qwen2.NAMES


def spec(config: Config) -> DecoderSpec:
    """That of the text part, which published configs do not set apart."""
    text = text_part(config)
    eps = text.number("norm_eps", 1e-5)
    return replace(qwen2.spec(text), model_type="qwen2_vl", norm_eps=eps, ropes=(rope(text, 1e6),))


def weights(spec: DecoderSpec) -> dict[str, Source]:
    """Qwen2's names, in the place of a part or, as published, as if it were none."""
    return inside(qwen2.weights(spec))
