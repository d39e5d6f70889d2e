"""OLMo 1 and 1.7: Llama with layer norms that have no weights."""

from __future__ import annotations

from ipex_assist.models.common import llama_like, refuse
from ipex_assist.models.config import Config
from ipex_assist.models.names import llama_weights as weights
from ipex_assist.models.spec import DecoderSpec

__all__ = ["ARCHITECTURE", "EXAMPLES", "NAMES", "spec", "weights"]

ARCHITECTURE = "OlmoForCausalLM"
EXAMPLES = ("allenai/OLMo-7B-hf", "allenai/OLMo-1B-hf")
NAMES: dict[str, str] = {}


def spec(config: Config) -> DecoderSpec:
    """Clipped queries, keys and values (`clip_qkv`, in the 7B from 1.7 on) are not computed."""
    refuse(config, clip_qkv=None)
    bias = config.flag("attention_bias", False)
    return llama_like("olmo", config, norm="layer", norm_affine=False, norm_eps=1e-5, qkv_bias=bias, output_bias=bias)
