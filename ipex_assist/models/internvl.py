"""InternVL 2.5 to 3.5 as transformers has them: Qwen2, Qwen3 or Llama beside a vision model."""

from __future__ import annotations

from dataclasses import replace

from ipex_assist.models import llama, qwen2, qwen3, qwen3_moe
from ipex_assist.models.common import text_part
from ipex_assist.models.config import Config, NotComputed
from ipex_assist.models.names import inside, llama_weights
from ipex_assist.models.spec import DecoderSpec
from ipex_assist.models.weights import Source

ARCHITECTURE = "InternVLForConditionalGeneration"
EXAMPLES = ("OpenGVLab/InternVL3_5-8B-HF", "OpenGVLab/InternVL3-1B-hf")
NAMES = {"norm_eps": "rms_norm_eps"}
_KINDS = {"qwen2": qwen2, "qwen3": qwen3, "qwen3_moe": qwen3_moe, "llama": llama}


def spec(config: Config) -> DecoderSpec:
    """Which of them it is, the `model_type` of its text_config says."""
    text = text_part(Config({"tie_word_embeddings": True, **config.values}, config.other_names))
    kind = text.text("model_type", "qwen2")
    if kind not in _KINDS:
        raise NotComputed(f"a text model of the type {kind!r} is not supported, only {' and '.join(_KINDS)}")
    return replace(_KINDS[kind].spec(Config(text.values, _KINDS[kind].NAMES)), model_type="internvl")


def weights(spec: DecoderSpec) -> dict[str, Source]:
    """Its text model's names, in the place of a part."""
    return inside(qwen3_moe.weights(spec) if spec.experts is not None else llama_weights(spec))
