"""GLM-4 9B (0414's predecessor), as transformers has it: Llama that rotates pairs in half of each head."""

from __future__ import annotations

from typing import Any

from ipex_assist.models.common import llama_like, rope, rotary_part
from ipex_assist.models.config import Config
from ipex_assist.models.names import LLAMA_LINEARS, LLAMA_NORMS, merged, named, rotated_by_pairs, stacked_gate_up
from ipex_assist.models.spec import DecoderSpec
from ipex_assist.models.weights import Source

ARCHITECTURE = "GlmForCausalLM"
EXAMPLES = ("zai-org/glm-4-9b-chat-hf",)
NAMES = {"norm_eps": "rms_norm_eps"}


def spec(config: Config) -> DecoderSpec:
    """`attention_bias` puts a bias on query, key and value."""
    return llama_like("glm", config, **shared(config))


def shared(config: Config) -> dict[str, Any]:
    """The fields that GLM-4 0414 shares."""
    head_dim = config.integer("head_dim", 128)
    return {
        "head_dim": head_dim,
        "num_key_value_heads": config.integer("num_key_value_heads", 2),
        "norm_eps": config.number("norm_eps", 0.00000015625),
        "ropes": (rope(config, partial=True),),
        "rotary_dim": rotary_part(config, head_dim, 0.5),
        "qkv_bias": config.flag("attention_bias", True),
    }


def weights(spec: DecoderSpec, norms: dict[str, str] = LLAMA_NORMS) -> dict[str, Source]:
    """Gate and up are one tensor; query and key in the order that is rotated by halves."""
    fused = dict.fromkeys(("gate_proj", "up_proj"), "mlp.gate_up_proj")
    fields = merged(stacked_gate_up(spec), rotated_by_pairs(spec))
    return named(spec, linears=LLAMA_LINEARS | fused, norms=norms, fields=fields)
