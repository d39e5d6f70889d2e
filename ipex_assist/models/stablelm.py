"""StableLM 3B, Zephyr and StableLM 2: Llama with layer norms, and positions in a quarter of each head."""

from __future__ import annotations

from ipex_assist.models.common import even_head_dim, llama_like, refuse, rope, rotary_part
from ipex_assist.models.config import Config
from ipex_assist.models.names import named
from ipex_assist.models.spec import DecoderSpec
from ipex_assist.models.weights import Source

ARCHITECTURE = "StableLmForCausalLM"
EXAMPLES = ("stabilityai/stablelm-3b-4e1t", "stabilityai/stablelm-2-1_6b")
NAMES = {"norm_eps": "layer_norm_eps"}


def spec(config: Config) -> DecoderSpec:
    """With a parallel residual one norm serves attention and MLP. Norms of heads (StableLM 2 12B) are not computed."""
    refuse(config, qk_layernorm=False)
    parallel = config.flag("use_parallel_residual", False)
    return llama_like(
        "stablelm",
        config,
        head_dim=even_head_dim(config),
        norm="layer",
        norm_eps=config.number("norm_eps", 1e-5),
        parallel=parallel,
        shared_norm=parallel,
        ropes=(rope(config, partial=True),),
        rotary_dim=rotary_part(config, even_head_dim(config), 0.25),
        qkv_bias=config.flag("use_qkv_bias", False),
    )


def weights(spec: DecoderSpec) -> dict[str, Source]:
    """Llama's names."""
    return named(spec)
