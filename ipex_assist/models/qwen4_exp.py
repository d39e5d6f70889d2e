"""Qwen4 as it is published: the text part beside a vision model."""

from __future__ import annotations

from dataclasses import replace

from ipex_assist.models import qwen4_exp_text
from ipex_assist.models.common import text_part
from ipex_assist.models.config import Config
from ipex_assist.models.names import inside
from ipex_assist.models.spec import DecoderSpec, LayerSpec
from ipex_assist.models.weights import Source

ARCHITECTURE = "Qwen4ExpForConditionalGeneration"
EXAMPLES = qwen4_exp_text.EXAMPLES
NAMES = qwen4_exp_text.NAMES


def spec(config: Config) -> DecoderSpec:
    """That of the text part."""
    return replace(qwen4_exp_text.spec(text_part(config)), model_type="qwen4_exp")


def layer_after(config: Config, number: int) -> LayerSpec:
    """That of the text part."""
    return qwen4_exp_text.layer_after(text_part(config), number)


def weights(spec: DecoderSpec) -> dict[str, Source]:
    """The text part's names, in the place of a part."""
    return inside(qwen4_exp_text.weights(spec))
