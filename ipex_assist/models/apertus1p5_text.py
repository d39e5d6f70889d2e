"""Apertus 1.5, the text part: Apertus, whose head may have the first tokens of the vocabulary alone."""

from __future__ import annotations

from dataclasses import replace

from ipex_assist.models import apertus
from ipex_assist.models.config import Config
from ipex_assist.models.names import inside
from ipex_assist.models.spec import DecoderSpec
from ipex_assist.models.weights import Source

ARCHITECTURE = "Apertus1p5TextForCausalLM"
EXAMPLES = ("swiss-ai/Apertus-v1.5-8B",)
NAMES = apertus.NAMES


def spec(config: Config) -> DecoderSpec:
    """Tokens of images and sound have an embedding, and no logit where the head was pruned."""
    alike = apertus.spec(config)
    rows = config.optional_integer("output_vocab_size")
    return replace(alike, model_type="apertus1p5_text", output_vocab_size=None if rows == alike.vocab_size else rows)


def weights(spec: DecoderSpec) -> dict[str, Source]:
    """Apertus's, in the place of a part."""
    return inside(apertus.weights(spec))
