"""Jais 2: Llama with layer norms, a plain MLP of ReLU's square, and biases everywhere."""

from __future__ import annotations

from ipex_assist.models.common import activation, llama_like
from ipex_assist.models.config import Config
from ipex_assist.models.names import llama_weights as weights
from ipex_assist.models.spec import DecoderSpec

__all__ = ["ARCHITECTURE", "EXAMPLES", "NAMES", "spec", "weights"]

ARCHITECTURE = "Jais2ForCausalLM"
EXAMPLES = ("inceptionai/Jais-2-8B-Chat", "inceptionai/Jais-2-70B-Chat")
NAMES = {"norm_eps": "layer_norm_eps"}


def spec(config: Config) -> DecoderSpec:
    """`attention_bias` puts a bias on all four projections of attention, `mlp_bias` on both of the MLP."""
    bias = config.flag("attention_bias", True)
    return llama_like(
        "jais2",
        config,
        norm="layer",
        norm_eps=config.number("norm_eps", 1e-5),
        activation=activation(config.text("hidden_act", "relu2")),
        gated=False,
        qkv_bias=bias,
        output_bias=bias,
        mlp_bias=config.flag("mlp_bias", True),
    )
