"""Gemma 2: norms before and after, soft caps of scores and logits, a window in every second layer."""

from __future__ import annotations

from typing import Any

from ipex_assist.models.common import activation, layer_kinds, llama_like, number_or_none, positive, refuse, windows
from ipex_assist.models.config import Config
from ipex_assist.models.gemma import PLUS_ONE
from ipex_assist.models.names import HEAD_NORMS, named
from ipex_assist.models.spec import DecoderSpec
from ipex_assist.models.weights import Source

ARCHITECTURE = "Gemma2ForCausalLM"
EXAMPLES = ("google/gemma-2-9b-it", "google/gemma-2-2b-it")
NAMES = {"norm_eps": "rms_norm_eps"}
NORM_NAMES = {
    "attention_norm": "input_layernorm",
    "attention_out_norm": "post_attention_layernorm",
    "mlp_norm": "pre_feedforward_layernorm",
    "mlp_out_norm": "post_feedforward_layernorm",
    **HEAD_NORMS,
}


def spec(config: Config) -> DecoderSpec:
    """The caps may be null: then there is none."""
    kinds = layer_kinds(config, lambda layer: layer % 2 == 0)
    return llama_like(
        "gemma2",
        config,
        **shared(config),
        sliding_windows=windows(config, kinds, 4096),
        attention_cap=number_or_none(config, "attn_logit_softcapping", 50.0),
        logit_cap=number_or_none(config, "final_logit_softcapping", 30.0),
    )


def shared(config: Config) -> dict[str, Any]:
    """What Gemma 3 does, too."""
    refuse(config, use_bidirectional_attention=False)
    bias = config.flag("attention_bias", False)
    return {
        "head_dim": config.integer("head_dim", 256),
        "norm_place": "sandwich",
        "activation": activation(config.text("hidden_activation", "gelu_pytorch_tanh")),
        "qkv_bias": bias,
        "output_bias": bias,
        "attention_scale": positive(config, "query_pre_attn_scalar", 256.0) ** -0.5,
        "embedding_multiplier": config.integer("hidden_size") ** 0.5,
        "tied_head": config.flag("tie_word_embeddings", True),
    }


def weights(spec: DecoderSpec) -> dict[str, Source]:
    """Four norms a layer; their weights are counted from 1."""
    return named(spec, norms=NORM_NAMES, fields=PLUS_ONE)
