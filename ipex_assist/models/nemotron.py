"""Nemotron 3, 4 and Minitron: layer norms by 1 + w, a plain MLP of ReLU's square, half of each head rotated."""

from __future__ import annotations

from ipex_assist.models.common import activation, even_head_dim, llama_like, rope, rotary_part
from ipex_assist.models.config import Config
from ipex_assist.models.gemma import PLUS_ONE
from ipex_assist.models.names import named
from ipex_assist.models.spec import DecoderSpec
from ipex_assist.models.weights import Source

ARCHITECTURE = "NemotronForCausalLM"
EXAMPLES = ("nvidia/Nemotron-4-340B-Instruct", "nvidia/Minitron-8B-Base", "nvidia/Nemotron-Mini-4B-Instruct")
NAMES: dict[str, str] = {}


def spec(config: Config) -> DecoderSpec:
    """`attention_bias` puts a bias on all four projections of attention, `mlp_bias` on both of the MLP."""
    head_dim = config.optional_integer("head_dim") or even_head_dim(config)
    bias = config.flag("attention_bias", False)
    return llama_like(
        "nemotron",
        config,
        head_dim=head_dim,
        norm="layer",
        norm_eps=config.number("norm_eps", 1e-5),
        activation=activation(config.text("hidden_act", "relu2")),
        gated=False,
        ropes=(rope(config, partial=True),),
        rotary_dim=rotary_part(config, head_dim, 0.5),
        qkv_bias=bias,
        output_bias=bias,
        mlp_bias=config.flag("mlp_bias", False),
    )


def weights(spec: DecoderSpec) -> dict[str, Source]:
    """Llama's names."""
    return named(spec, fields=PLUS_ONE)
