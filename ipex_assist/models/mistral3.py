"""Mistral Small 3.1 to 4, and Ministral 3: Mistral, Ministral 3 or Mistral 4 beside a vision model."""

from __future__ import annotations

from dataclasses import replace

from ipex_assist.models import ministral3, mistral, mistral4
from ipex_assist.models.common import text_part
from ipex_assist.models.config import Config, NotComputed
from ipex_assist.models.names import inside, llama_weights
from ipex_assist.models.spec import DecoderSpec
from ipex_assist.models.weights import Source

ARCHITECTURE = "Mistral3ForConditionalGeneration"
EXAMPLES = ("mistralai/Mistral-Small-3.1-24B-Instruct-2503", "mistralai/Ministral-3-8B-Instruct-2512")
NAMES = {"norm_eps": "rms_norm_eps"}
_KINDS = {"mistral": mistral, "ministral3": ministral3, "mistral4": mistral4}


def spec(config: Config) -> DecoderSpec:
    """Which of the three it is, the `model_type` of its text_config says."""
    text = text_part(config)
    kind = text.text("model_type", "mistral")
    if kind not in _KINDS:
        raise NotComputed(f"a text model of the type {kind!r} is not supported, only {' and '.join(_KINDS)}")
    return replace(_KINDS[kind].spec(Config(text.values, _KINDS[kind].NAMES)), model_type="mistral3")


def weights(spec: DecoderSpec) -> dict[str, Source]:
    """Llama's names, or those of latent attention, in the place of a part."""
    latent = spec.layers[0].attention.latent is not None
    return inside(mistral4.weights(spec) if latent else llama_weights(spec))
