"""Arcee's AFM: Llama with a plain MLP, of ReLU's square."""

from __future__ import annotations

from ipex_assist.models.common import activation, llama_like
from ipex_assist.models.config import Config
from ipex_assist.models.names import llama_weights as weights
from ipex_assist.models.spec import DecoderSpec

__all__ = ["ARCHITECTURE", "EXAMPLES", "NAMES", "spec", "weights"]

ARCHITECTURE = "ArceeForCausalLM"
EXAMPLES = ("arcee-ai/AFM-4.5B",)
NAMES = {"norm_eps": "rms_norm_eps"}


def spec(config: Config) -> DecoderSpec:
    """`attention_bias` puts a bias on all four projections of attention, `mlp_bias` on both of the MLP."""
    bias = config.flag("attention_bias", False)
    return llama_like(
        "arcee",
        config,
        norm_eps=config.number("norm_eps", 1e-5),
        activation=activation(config.text("hidden_act", "relu2")),
        gated=False,
        qkv_bias=bias,
        output_bias=bias,
        mlp_bias=config.flag("mlp_bias", False),
    )
