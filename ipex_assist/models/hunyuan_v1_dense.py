"""Hunyuan (dense, 0.5B to 7B): Llama with a norm of each head of query and key after rotation."""

from __future__ import annotations

from typing import Any

from ipex_assist.models.common import even_head_dim, llama_like, refuse, rope
from ipex_assist.models.config import Config, ConfigError
from ipex_assist.models.names import LLAMA_NORMS, named
from ipex_assist.models.rope_spec import Rope
from ipex_assist.models.spec import DecoderSpec
from ipex_assist.models.weights import Source

ARCHITECTURE = "HunYuanDenseV1ForCausalLM"
EXAMPLES = ("tencent/Hunyuan-7B-Instruct", "tencent/Hunyuan-0.5B-Instruct")
NAMES = {"norm_eps": "rms_norm_eps"}
NORMS = {**LLAMA_NORMS, "q_norm": "self_attn.query_layernorm", "k_norm": "self_attn.key_layernorm"}


def spec(config: Config) -> DecoderSpec:
    """`attention_bias` puts a bias on all four projections of attention."""
    return llama_like("hunyuan_v1_dense", config, **shared(config))


def shared(config: Config) -> dict[str, Any]:
    """What the mixtures have as well. Layers that share keys and values (CLA) are not computed."""
    refuse(config, use_cla=False, use_qk_norm=True)
    bias = config.flag("attention_bias", False)
    return {
        "norm_eps": config.number("norm_eps", 1e-5),
        "ropes": (_rope(config),),
        "qk_norm": "head",
        "norm_after_rope": True,
        "qkv_bias": bias,
        "output_bias": bias,
    }


def _rope(config: Config) -> Rope:
    """Where a dynamic rope has an `alpha`, it is a larger base for all lengths, and its other numbers are not read."""
    found = rope(config)
    alpha = Config(config.part("rope_parameters") or config.part("rope_scaling")).optional_number("alpha")
    if found.kind != "dynamic" or not alpha:
        return found
    head_dim = config.optional_integer("head_dim") or even_head_dim(config)
    if alpha < 0 or head_dim < 4:
        raise ConfigError("alpha", alpha, "above 0, with a head_dim of 4 at least")
    return Rope(found.theta * min(alpha, 1e15) ** (head_dim / (head_dim - 2)))


def weights(spec: DecoderSpec) -> dict[str, Source]:
    """Llama's names but for the norms of heads."""
    return named(spec, norms=NORMS)
