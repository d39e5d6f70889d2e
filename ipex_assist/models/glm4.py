"""GLM-4 0414 (9B, 32B, Z1): GLM-4 with norms after attention and MLP, too."""

from __future__ import annotations

from ipex_assist.models import glm
from ipex_assist.models.common import llama_like
from ipex_assist.models.config import Config
from ipex_assist.models.spec import DecoderSpec
from ipex_assist.models.weights import Source

ARCHITECTURE = "Glm4ForCausalLM"
EXAMPLES = ("zai-org/GLM-4-9B-0414", "zai-org/GLM-Z1-32B-0414")
NAMES = {"norm_eps": "rms_norm_eps"}
_NORMS = {
    "attention_norm": "input_layernorm",
    "attention_out_norm": "post_self_attn_layernorm",
    "mlp_norm": "post_attention_layernorm",
    "mlp_out_norm": "post_mlp_layernorm",
}


def spec(config: Config) -> DecoderSpec:
    """`attention_bias` puts a bias on query, key and value."""
    return llama_like("glm4", config, **glm.shared(config), norm_place="sandwich")


def weights(spec: DecoderSpec) -> dict[str, Source]:
    """GLM-4's names, and two more norms."""
    return glm.weights(spec, _NORMS)
