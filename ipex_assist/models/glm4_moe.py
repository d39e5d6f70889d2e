"""GLM-4.5, 4.6 and 4.7: GLM with many small experts by sigmoid scores, and a dense MLP in the first layers."""

from __future__ import annotations

from typing import Any

from ipex_assist.models.common import deepseek_experts, dense_first, even_head_dim, llama_like, rope, rotary_part
from ipex_assist.models.config import Config
from ipex_assist.models.names import HEAD_NORMS, LLAMA_NORMS, SHARED_EXPERTS, ExpertNames, named
from ipex_assist.models.spec import DecoderSpec
from ipex_assist.models.weights import Source

ARCHITECTURE = "Glm4MoeForCausalLM"
EXAMPLES = ("zai-org/GLM-4.5-Air", "zai-org/GLM-4.6")
NAMES = {"norm_eps": "rms_norm_eps", "num_experts": "n_routed_experts"}


def spec(config: Config) -> DecoderSpec:
    """`attention_bias` puts a bias on query, key and value. Layers that predict further tokens: mtp.py."""
    return glm_like(
        "glm4_moe",
        config,
        head_dim=config.optional_integer("head_dim") or even_head_dim(config),
        norm_eps=config.number("norm_eps", 1e-5),
        qk_norm="head" if config.flag("use_qk_norm", False) else None,
        scaling=config.number("routed_scaling_factor", 1.0),
    )


def glm_like(
    model_type: str,
    config: Config,
    *,
    head_dim: int,
    scaling: float,
    theta: float = 10000.0,
    rotated: float = 0.5,
    **differences: Any,
) -> DecoderSpec:
    """The spec of a model that is GLM-4.5 but for what these say and `differences`.

    scaling: of experts' weights. theta, rotated: the base of positions, and the part of a head that is rotated, of a
    config without them.
    """
    experts = deepseek_experts(config, shared=config.integer("n_shared_experts", 1), scaling=scaling)
    return llama_like(
        model_type,
        config,
        head_dim=head_dim,
        ropes=(rope(config, theta, partial=True),),
        rotary_dim=rotary_part(config, head_dim, rotated),
        qkv_bias=config.flag("attention_bias", False),
        **dense_first(config, config.integer("first_k_dense_replace", 1), experts),
        **differences,
    )


def weights(spec: DecoderSpec) -> dict[str, Source]:
    """Qwen's names of experts, DeepSeek's of shared ones."""
    return named(spec, norms={**LLAMA_NORMS, **HEAD_NORMS}, experts=ExpertNames(shared=SHARED_EXPERTS))
