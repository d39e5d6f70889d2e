"""OLMo 2: Llama with its norms after attention and MLP, and one norm over all heads of query, and of key."""

from __future__ import annotations

from typing import Any

from ipex_assist.models.common import llama_like
from ipex_assist.models.config import Config
from ipex_assist.models.names import HEAD_NORMS, named
from ipex_assist.models.spec import DecoderSpec
from ipex_assist.models.weights import Source

ARCHITECTURE = "Olmo2ForCausalLM"
EXAMPLES = ("allenai/OLMo-2-1124-13B", "allenai/OLMo-2-0425-1B")
NAMES = {"norm_eps": "rms_norm_eps"}
_NORMS = {"attention_out_norm": "post_attention_layernorm", "mlp_out_norm": "post_feedforward_layernorm", **HEAD_NORMS}


def spec(config: Config) -> DecoderSpec:
    """The spec of OLMo 2."""
    return olmo("olmo2", config)


def olmo(model_type: str, config: Config, **differences: Any) -> DecoderSpec:
    """`attention_bias` puts a bias on all four projections of attention."""
    bias = config.flag("attention_bias", False)
    return llama_like(
        model_type,
        config,
        norm_eps=config.number("norm_eps", 1e-5),
        norm_place="post",
        qk_norm="all_heads",
        qkv_bias=bias,
        output_bias=bias,
        **differences,
    )


def weights(spec: DecoderSpec) -> dict[str, Source]:
    """Llama's names but for the norms."""
    return named(spec, norms=_NORMS)
