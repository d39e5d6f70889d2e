"""Granite 3 (dense): Llama with multipliers of the embedding, the residual stream, attention and logits."""

from __future__ import annotations

from typing import Any

from ipex_assist.models.common import llama_like, positive
from ipex_assist.models.config import Config
from ipex_assist.models.names import named
from ipex_assist.models.spec import DecoderSpec
from ipex_assist.models.weights import Source

ARCHITECTURE = "GraniteForCausalLM"
EXAMPLES = ("ibm-granite/granite-3.3-8b-instruct", "ibm-granite/granite-3.3-2b-instruct")
NAMES = {"norm_eps": "rms_norm_eps", "attention_scale": "attention_multiplier", "logit_multiplier": "logits_scaling"}


def spec(config: Config) -> DecoderSpec:
    """`logits_scaling` divides, the others multiply."""
    return granite_like("granite", config, mlp_bias=config.flag("mlp_bias", False))


def granite_like(model_type: str, config: Config, **differences: Any) -> DecoderSpec:
    """The spec of a model that is Granite but for `differences`."""
    bias = config.flag("attention_bias", False)
    return llama_like(
        model_type,
        config,
        qkv_bias=bias,
        output_bias=bias,
        embedding_multiplier=config.number("embedding_multiplier", 1.0),
        residual_multiplier=config.number("residual_multiplier", 1.0),
        attention_scale=config.number("attention_scale", 1.0),
        logit_multiplier=1 / positive(config, "logit_multiplier", 1.0),
        **differences,
    )


def weights(spec: DecoderSpec) -> dict[str, Source]:
    """Llama's names; the multiplier of logits goes into the final norm."""
    return named(spec, fields={"final_norm": {"factor": spec.logit_multiplier}})
