"""Mamba-2: recurrent layers alone, no attention and no MLP."""

from __future__ import annotations

import math

from ipex_assist.models.config import Config, ConfigError
from ipex_assist.models.mamba_layers import mamba2_mixer, mamba_fields, mamba_names, mixers_alone, weights_alone
from ipex_assist.models.spec import DecoderSpec
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
    return mixers_alone("mamba2", config, mixer, tied=False)


def weights(spec: DecoderSpec) -> dict[str, Source]:
    """Those of the mixers."""
    return weights_alone(spec, mamba_fields(spec.recurrents[0]), mamba_names("mixer"))
