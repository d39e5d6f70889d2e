"""Mamba, the first one: recurrent layers alone, no attention and no MLP."""

from __future__ import annotations

from typing import Any

from ipex_assist.models.common import layer_count
from ipex_assist.models.config import Config
from ipex_assist.models.layers import repeated
from ipex_assist.models.mamba_layers import CONTEXT, selective_fields, selective_mixer, selective_names
from ipex_assist.models.names import named
from ipex_assist.models.spec import DecoderSpec, LayerSpec
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
    return DecoderSpec(
        model_type=model_type,
        vocab_size=config.integer("vocab_size"),
        hidden_size=config.integer("hidden_size"),
        layers=repeated(LayerSpec(mixer, None), layer_count(config)),
        max_position_embeddings=CONTEXT,
        norm_eps=config.number("norm_eps", 1e-5),
        tied_head=config.flag("tie_word_embeddings", True),
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
        fields={"embed_tokens": {"alternatives": _OTHER_NAMES}, **selective_fields(spec.recurrents[0])},
        recurrent=selective_names("mixer"),
    )
