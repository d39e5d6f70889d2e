"""Mistral Small 3.1 and 3.2, and Ministral 3, for text alone: Mistral, or Ministral 3, beside a vision model."""

from __future__ import annotations

from dataclasses import replace

from ipex_assist.models import ministral3, mistral
from ipex_assist.models.common import text_part
from ipex_assist.models.config import Config, NotComputed
from ipex_assist.models.names import inside, llama_weights
from ipex_assist.models.spec import DecoderSpec
from ipex_assist.models.weights import Source

ARCHITECTURE = "Mistral3ForConditionalGeneration"
EXAMPLES = ("mistralai/Mistral-Small-3.1-24B-Instruct-2503", "mistralai/Ministral-3-8B-Instruct-2512")
NAMES = {"norm_eps": "rms_norm_eps"}
_KINDS = {"mistral": mistral.spec, "ministral3": ministral3.spec}


def spec(config: Config) -> DecoderSpec:
    """Which of the two it is, the `model_type` of its text_config says."""
    text = text_part(config)
    kind = text.text("model_type", "mistral")
    if kind not in _KINDS:
        raise NotComputed(f"a text model of the type {kind!r} is not supported, only {' and '.join(_KINDS)}")
    return replace(_KINDS[kind](text), model_type="mistral3")


def weights(spec: DecoderSpec) -> dict[str, Source]:
    """Llama's names, in the place of a part."""
    return inside(llama_weights(spec))
