"""Cohere's Command R, R+ and Aya 23: attention and MLP side by side after one layer norm; rotates pairs."""

from __future__ import annotations

from typing import Any

from ipex_assist.models.common import llama_like, rope
from ipex_assist.models.config import Config
from ipex_assist.models.names import HEAD_NORMS, ExpertNames, named, rotated_by_pairs
from ipex_assist.models.spec import DecoderSpec
from ipex_assist.models.weights import Source

ARCHITECTURE = "CohereForCausalLM"
EXAMPLES = ("CohereLabs/c4ai-command-r-v01", "CohereLabs/aya-23-8B")
NAMES = {"norm_eps": "layer_norm_eps", "logit_multiplier": "logit_scale"}


def spec(config: Config) -> DecoderSpec:
    """R+ has a norm of each head of query and key."""
    return llama_like(
        "cohere",
        config,
        **shared(config),
        ropes=(rope(config, 500000.0),),
        qk_norm="each_head" if config.flag("use_qk_norm", False) else None,
    )


def shared(config: Config) -> dict[str, Any]:
    """What Command R7B does, too."""
    bias = config.flag("attention_bias", False)
    return {
        "norm": "layer",
        "norm_eps": config.number("norm_eps", 1e-5),
        "norm_bias": False,
        "parallel": True,
        "shared_norm": True,
        "qkv_bias": bias,
        "output_bias": bias,
        "logit_multiplier": config.number("logit_multiplier", 0.0625),
        "tied_head": config.flag("tie_word_embeddings", True),
    }


def weights(spec: DecoderSpec, experts: ExpertNames | None = None) -> dict[str, Source]:
    """Query, key and their norms in the order that is rotated by halves; the logits' factor goes to the final norm."""
    fields = rotated_by_pairs(spec) | {"final_norm": {"factor": spec.logit_multiplier}}
    fields |= {name: {"flat": True, **fields["q_proj"]} for name in HEAD_NORMS}
    return named(spec, norms={"attention_norm": "input_layernorm", **HEAD_NORMS}, fields=fields, experts=experts)
