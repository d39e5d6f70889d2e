"""ERNIE 4.5 (dense): Llama that rotates pairs."""

from __future__ import annotations

from typing import Any

from ipex_assist.models.common import llama_like, rope
from ipex_assist.models.config import Config
from ipex_assist.models.names import named, rotated_by_pairs
from ipex_assist.models.spec import DecoderSpec
from ipex_assist.models.weights import Source

ARCHITECTURE = "Ernie4_5ForCausalLM"
EXAMPLES = ("baidu/ERNIE-4.5-0.3B-PT",)
NAMES = {"norm_eps": "rms_norm_eps"}


def spec(config: Config) -> DecoderSpec:
    """`use_bias` puts a bias on all linears of a layer."""
    head_dim = {} if "head_dim" in config.values else {"head_dim": 128}
    return llama_like("ernie4_5", config, **shared(config), **head_dim, mlp_bias=config.flag("use_bias", False))


def shared(config: Config) -> dict[str, Any]:
    """The fields that the mixtures share."""
    bias = config.flag("use_bias", False)
    return {
        "norm_eps": config.number("norm_eps", 1e-5),
        "max_position_embeddings": config.integer("max_position_embeddings", 131072),
        "ropes": (rope(config, 500000.0),),
        "qkv_bias": bias,
        "output_bias": bias,
        "tied_head": config.flag("tie_word_embeddings", True),
    }


def weights(spec: DecoderSpec) -> dict[str, Source]:
    """Llama's names; query and key in the order that is rotated by halves."""
    return named(spec, fields=rotated_by_pairs(spec))
