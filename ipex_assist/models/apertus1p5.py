"""Apertus 1.5 as it is published: the text part beside encoders of images and sound."""

from __future__ import annotations

from dataclasses import replace

from ipex_assist.models import apertus1p5_text
from ipex_assist.models.common import text_part
from ipex_assist.models.config import Config
from ipex_assist.models.spec import DecoderSpec

ARCHITECTURE = "Apertus1p5ForConditionalGeneration"
EXAMPLES = apertus1p5_text.EXAMPLES
NAMES = apertus1p5_text.NAMES
weights = apertus1p5_text.weights


def spec(config: Config) -> DecoderSpec:
    """That of the text part."""
    return replace(apertus1p5_text.spec(text_part(config)), model_type="apertus1p5")
