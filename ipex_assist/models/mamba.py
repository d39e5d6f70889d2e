"""Mamba, the first one: recurrent layers alone, no attention and no MLP."""

from __future__ import annotations

from typing import Any

from ipex_assist.models.config import Config
from ipex_assist.models.mamba_layers import (
    mixers_alone,
    selective_fields,
    selective_mixer,
    selective_names,
    weights_alone,
)
from ipex_assist.models.spec import DecoderSpec
from ipex_assist.models.weights import Source

ARCHITECTURE = "MambaForCausalLM"
EXAMPLES = ("state-spaces/mamba-2.8b-hf", "state-spaces/mamba-130m-hf")
NAMES = {
    **{"norm_eps": "layer_norm_epsilon", "gate_rank": "time_step_rank", "linear_key_head_dim": "state_size"},
    **{"linear_value_head_dim": "intermediate_size", "linear_conv_kernel_dim": "conv_kernel"},
    **{"mamba_expand": "expand", "mamba_conv_bias": "use_conv_bias", "mamba_proj_bias": "use_bias"},
}
# Of the embedding: in files of the bare model, and in those of the first transformers that had Mamba.
_OTHER_NAMES = ("embeddings.weight", "backbone.embedding.weight", "embedding.weight")


def spec(config: Config) -> DecoderSpec:
    """The layers, all alike."""
    return recurrent_alone("mamba", config)


def recurrent_alone(model_type: str, config: Config, **norm: Any) -> DecoderSpec:
    """A model of Mamba-1 layers alone. norm: of their selection, as fields of RecurrentSpec."""
    mixer = selective_mixer(config, config.optional_integer("linear_value_head_dim"), **norm)
    return mixers_alone(model_type, config, mixer, tied=True)


def weights(spec: DecoderSpec) -> dict[str, Source]:
    """Those of the mixers, and an embedding of several names."""
    fields = {"embed_tokens": {"alternatives": _OTHER_NAMES}, **selective_fields(spec.recurrents[0])}
    return weights_alone(spec, fields, selective_names("mixer"))
