"""Qwen3.5 as it is published: the text part beside a vision model."""

from __future__ import annotations

from dataclasses import replace

from ipex_assist.models import qwen3_5_text
from ipex_assist.models.common import text_part
from ipex_assist.models.config import Config
from ipex_assist.models.names import inside
from ipex_assist.models.spec import DecoderSpec
from ipex_assist.models.weights import Source

ARCHITECTURE = "Qwen3_5ForConditionalGeneration"
EXAMPLES = ("Qwen/Qwen3.5-9B", "Qwen/Qwen3.5-27B")
NAMES = {"norm_eps": "rms_norm_eps"}


def spec(config: Config) -> DecoderSpec:
    """That of the text part. Layers that predict further tokens: mtp.py."""
    return replace(qwen3_5_text.spec(text_part(config)), model_type="qwen3_5")


def weights(spec: DecoderSpec) -> dict[str, Source]:
    """The text part's names, in the place of a part."""
    return inside(qwen3_5_text.weights(spec))
