"""Granite for documents: Granite beside a vision model, whose rows also enter behind the first layers."""

from __future__ import annotations

from dataclasses import replace

from ipex_assist.models import granite
from ipex_assist.models.common import text_part
from ipex_assist.models.config import Config
from ipex_assist.models.idefics3 import in_text_model
from ipex_assist.models.qwen3_vl import embedding_layers
from ipex_assist.models.spec import DecoderSpec
from ipex_assist.models.weights import Source

ARCHITECTURE = "GraniteDoclingForConditionalGeneration"
EXAMPLES = ("ibm-granite/granite-for-docling-500m",)
NAMES = granite.NAMES


def spec(config: Config) -> DecoderSpec:
    """That of the text part."""
    text = granite.spec(text_part(config))
    return replace(text, model_type="granite_docling", embedding_layers=embedding_layers(config))


def weights(spec: DecoderSpec) -> dict[str, Source]:
    """Granite's names, in the place of a part."""
    return in_text_model(granite.weights(spec))
