"""OLMoE: Llama with many small experts, and one norm over all heads of query, and of key."""

from __future__ import annotations

from ipex_assist.models.common import experts, llama_like, refuse
from ipex_assist.models.config import Config
from ipex_assist.models.names import HEAD_NORMS, LLAMA_NORMS, ExpertNames, named
from ipex_assist.models.spec import DecoderSpec
from ipex_assist.models.weights import Source

ARCHITECTURE = "OlmoeForCausalLM"
EXAMPLES = ("allenai/OLMoE-1B-7B-0924-Instruct", "allenai/OLMoE-1B-7B-0125-Instruct")
NAMES = {"norm_eps": "rms_norm_eps", "moe_intermediate_size": "intermediate_size"}


def spec(config: Config) -> DecoderSpec:
    """`attention_bias` puts a bias on all of attention; clipped queries, keys and values are refused."""
    refuse(config, clip_qkv=None)
    bias = config.flag("attention_bias", False)
    return llama_like(
        "olmoe",
        config,
        norm_eps=config.number("norm_eps", 1e-5),
        qk_norm="all_heads",
        qkv_bias=bias,
        output_bias=bias,
        experts=experts(config, normalised=config.flag("norm_topk_prob", False)),
    )


def weights(spec: DecoderSpec) -> dict[str, Source]:
    """Llama's names, its norms of query and key, and Qwen's names of experts."""
    return named(spec, norms={**LLAMA_NORMS, **HEAD_NORMS}, experts=ExpertNames())
