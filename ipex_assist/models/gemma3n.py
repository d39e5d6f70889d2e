"""Gemma 3n as it is published: the text part beside models of images and sound."""

from __future__ import annotations

from dataclasses import replace

from ipex_assist.models import gemma3n_text
from ipex_assist.models.common import text_part
from ipex_assist.models.config import Config
from ipex_assist.models.spec import DecoderSpec
from ipex_assist.models.weights import Source

ARCHITECTURE = "Gemma3nForConditionalGeneration"
EXAMPLES = gemma3n_text.EXAMPLES
NAMES = gemma3n_text.NAMES


def spec(config: Config) -> DecoderSpec:
    """That of the text part, whose head is the embedding unless a part says otherwise."""
    text = text_part(Config({"tie_word_embeddings": True, **config.values}, config.other_names))
    return replace(gemma3n_text.spec(text), model_type="gemma3n")


def weights(spec: DecoderSpec) -> dict[str, Source]:
    """The text part's."""
    return gemma3n_text.weights(spec)
