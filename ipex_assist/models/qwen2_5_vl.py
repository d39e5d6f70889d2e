"""Qwen2.5-VL: Qwen2.5 beside a vision model."""

from __future__ import annotations

from dataclasses import replace

from ipex_assist.models import qwen2_vl
from ipex_assist.models.config import Config
from ipex_assist.models.qwen2_vl import weights
from ipex_assist.models.spec import DecoderSpec

__all__ = ["ARCHITECTURE", "EXAMPLES", "NAMES", "spec", "weights"]

ARCHITECTURE = "Qwen2_5_VLForConditionalGeneration"
EXAMPLES = ("Qwen/Qwen2.5-VL-7B-Instruct", "Qwen/Qwen2.5-VL-72B-Instruct")
NAMES = qwen2_vl.NAMES


def spec(config: Config) -> DecoderSpec:
    """The text parts of the two do not differ."""
    return replace(qwen2_vl.spec(config), model_type="qwen2_5_vl")
