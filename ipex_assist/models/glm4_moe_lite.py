"""GLM-4.7-Flash: DeepSeek-V3's latent attention and experts, with a dense MLP in the first layer."""

from __future__ import annotations

from typing import Any

from ipex_assist.models.common import check_kinds, deepseek_experts, layer_count, refuse
from ipex_assist.models.config import Config, ConfigError
from ipex_assist.models.latent import latent_decoder, latent_weights
from ipex_assist.models.spec import DecoderSpec
from ipex_assist.models.weights import Source

ARCHITECTURE = "Glm4MoeLiteForCausalLM"
EXAMPLES = ("zai-org/GLM-4.7-Flash",)
NAMES = {"norm_eps": "rms_norm_eps", "num_experts": "n_routed_experts"}
SIZES = {"kv_lora_rank": 512, "qk_rope_head_dim": 64, "qk_nope_head_dim": 192, "v_head_dim": 256, "q_lora_rank": 768}


def spec(config: Config) -> DecoderSpec:
    """Norms of the latents have an epsilon of their own. Layers that predict further tokens: mtp.py."""
    refuse(config, topk_method="noaux_tc", first_k_dense_replace=1)
    routed = deepseek_experts(
        config,
        shared=config.integer("n_shared_experts", 1),
        scaling=config.number("routed_scaling_factor", 1.8),
    )
    return latent_decoder(
        "glm4_moe_lite", config, SIZES, norm_eps=config.number("norm_eps", 1e-5), **_sparse(config, routed)
    )


def _sparse(config: Config, routed: Any) -> dict[str, Any]:
    """Which layers have experts, by `mlp_layer_types`; all but the first where it is not given."""
    count = layer_count(config)
    kinds = config.optional_texts("mlp_layer_types") or ["dense"] + ["sparse"] * (count - 1)
    check_kinds(kinds, "dense", "sparse")
    if len(kinds) != count:
        raise ConfigError("mlp_layer_types", f"a list of {len(kinds)}", f"one for each of {count} layers")
    sparse = [kind == "sparse" for kind in kinds]
    return {"experts": routed, "sparse": sparse} if any(sparse) else {}


def weights(spec: DecoderSpec) -> dict[str, Source]:
    """Those of latent attention, and DeepSeek's names of experts."""
    return latent_weights(spec)
