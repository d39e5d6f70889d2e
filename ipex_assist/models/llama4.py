"""Llama 4 as it is published: the text part beside a vision model."""

from __future__ import annotations

from dataclasses import replace

from ipex_assist.models import llama4_text
from ipex_assist.models.common import text_part
from ipex_assist.models.config import Config
from ipex_assist.models.names import inside
from ipex_assist.models.spec import DecoderSpec
from ipex_assist.models.weights import Source

ARCHITECTURE = "Llama4ForConditionalGeneration"
EXAMPLES = llama4_text.EXAMPLES
NAMES = llama4_text.NAMES


def spec(config: Config) -> DecoderSpec:
    """That of `text_config`."""
    return replace(llama4_text.spec(text_part(config)), model_type="llama4")


def weights(spec: DecoderSpec) -> dict[str, Source]:
    """The text model's names, in the place of a part."""
    return inside(llama4_text.weights(spec))
