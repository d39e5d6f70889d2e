"""Gemma 1 and CodeGemma: Llama with a scaled embedding, tanh GELU, and norms that weight by 1 + w."""

from __future__ import annotations

from ipex_assist.models.common import activation, llama_like, refuse
from ipex_assist.models.config import Config
from ipex_assist.models.names import HEAD_NORMS, LLAMA_NORMS, named
from ipex_assist.models.spec import DecoderSpec
from ipex_assist.models.weights import NORMS, Source

ARCHITECTURE = "GemmaForCausalLM"
EXAMPLES = ("google/gemma-7b", "google/codegemma-7b")
NAMES = {"norm_eps": "rms_norm_eps"}
PLUS_ONE = {name: {"plus": 1.0} for name in (*NORMS, *HEAD_NORMS)}


def spec(config: Config) -> DecoderSpec:
    """The first files say "gelu" and mean its tanh form."""
    refuse(config, use_bidirectional_attention=False)
    name = config.text("hidden_act", "gelu_pytorch_tanh")
    bias = config.flag("attention_bias", False)
    return llama_like(
        "gemma",
        config,
        head_dim=config.integer("head_dim", 256),
        activation="gelu_tanh" if name == "gelu" else activation(name),
        qkv_bias=bias,
        output_bias=bias,
        embedding_multiplier=config.integer("hidden_size") ** 0.5,
        tied_head=config.flag("tie_word_embeddings", True),
    )


def weights(spec: DecoderSpec) -> dict[str, Source]:
    """Llama's names."""
    return named(spec, norms=LLAMA_NORMS, fields=PLUS_ONE)
