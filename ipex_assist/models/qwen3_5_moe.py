"""Qwen3.5-MoE as it is published: the text part beside a vision model."""

from __future__ import annotations

from dataclasses import replace

from ipex_assist.models import qwen3_5_moe_text
from ipex_assist.models.common import text_part
from ipex_assist.models.config import Config
from ipex_assist.models.qwen3_5 import weights
from ipex_assist.models.spec import DecoderSpec

__all__ = ["ARCHITECTURE", "EXAMPLES", "NAMES", "spec", "weights"]

ARCHITECTURE = "Qwen3_5MoeForConditionalGeneration"
EXAMPLES = ("Qwen/Qwen3.5-35B-A3B", "Qwen/Qwen3.5-122B-A10B")
NAMES = {"norm_eps": "rms_norm_eps"}


def spec(config: Config) -> DecoderSpec:
    """That of the text part. Layers that predict further tokens: mtp.py."""
    return replace(qwen3_5_moe_text.spec(text_part(config)), model_type="qwen3_5_moe")
