"""Mamba-2: recurrent layers alone, no attention and no MLP."""

from __future__ import annotations

import math

from ipex_assist.models.common import layer_count
from ipex_assist.models.config import Config, ConfigError
from ipex_assist.models.layers import repeated
from ipex_assist.models.mamba_layers import CONTEXT, mamba2_mixer, mamba_fields, mamba_names
from ipex_assist.models.names import named
from ipex_assist.models.spec import DecoderSpec, LayerSpec
from ipex_assist.models.weights import Source

ARCHITECTURE = "Mamba2ForCausalLM"
EXAMPLES = ("mistralai/Mamba-Codestral-7B-v0.1",)
NAMES = {
    **{"norm_eps": "layer_norm_epsilon", "linear_num_value_heads": "num_heads", "linear_num_key_heads": "n_groups"},
    **{"linear_key_head_dim": "state_size", "linear_value_head_dim": "head_dim"},
    "linear_conv_kernel_dim": "conv_kernel",
}


def spec(config: Config) -> DecoderSpec:
    """Heads together are `expand` times as wide as the model."""
    width = config.integer("hidden_size")
    mixer = mamba2_mixer(config, config.text("hidden_act", "silu"), config.ends("time_step_limit", (0.0, math.inf)))
    if mixer.value_size != config.integer("expand", 2) * width:
        raise ConfigError("expand", config.integer("expand", 2), f"{mixer.value_size:,} ÷ the width, {width:,}")
    return DecoderSpec(
        model_type="mamba2",
        vocab_size=config.integer("vocab_size"),
        hidden_size=width,
        layers=repeated(LayerSpec(mixer, None), layer_count(config)),
        max_position_embeddings=CONTEXT,
        norm_eps=config.number("norm_eps", 1e-5),
        tied_head=config.flag("tie_word_embeddings", False),
    )


def weights(spec: DecoderSpec) -> dict[str, Source]:
    """Each layer has one norm."""
    return named(
        spec,
        prefix="backbone.",
        layers="backbone.layers.",
        linears={},
        norms={"attention_norm": "norm"},
        outside={"embed_tokens": "backbone.embeddings", "final_norm": "backbone.norm_f", "lm_head": "lm_head"},
        fields=mamba_fields(spec.recurrents[0]),
        recurrent=mamba_names("mixer"),
    )
