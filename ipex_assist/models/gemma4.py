"""Gemma 4 as it is published: the text part beside models of images and sound."""

from __future__ import annotations

from dataclasses import replace

from ipex_assist.models import gemma4_text
from ipex_assist.models.common import text_part
from ipex_assist.models.config import Config
from ipex_assist.models.names import inside
from ipex_assist.models.spec import DecoderSpec
from ipex_assist.models.weights import Source

ARCHITECTURE = "Gemma4ForConditionalGeneration"
EXAMPLES = ("google/gemma-4-E2B-it", "google/gemma-4-31B-it", "google/gemma-4-26B-A4B-it")
NAMES = gemma4_text.NAMES


def spec(config: Config) -> DecoderSpec:
    """That of the text part, whose head is the embedding unless a part says otherwise."""
    text = text_part(Config({"tie_word_embeddings": True, **config.values}, config.other_names))
    made = replace(gemma4_text.spec(text), model_type="gemma4")
    sees_ahead = text.values.get("use_bidirectional_attention") == "vision"
    return replace(made, whole_images="windows") if sees_ahead else made


def weights(spec: DecoderSpec) -> dict[str, Source]:
    """The text part's names, in the place of a part."""
    return inside(gemma4_text.weights(spec))
