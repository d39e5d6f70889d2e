"""DeepSeek-V3, R1, Kimi K2 and Moonlight: latent attention, and experts by sigmoid scores after dense first layers."""

from __future__ import annotations

from ipex_assist.models.common import deepseek_experts, dense_first, refuse
from ipex_assist.models.config import Config
from ipex_assist.models.latent import latent_decoder, latent_weights
from ipex_assist.models.mlp_spec import Experts
from ipex_assist.models.spec import DecoderSpec
from ipex_assist.models.weights import Source

ARCHITECTURE = "DeepseekV3ForCausalLM"
EXAMPLES = (
    "deepseek-ai/DeepSeek-V3-0324",
    "deepseek-ai/DeepSeek-R1",
    "moonshotai/Kimi-K2-Instruct",
    "moonshotai/Moonlight-16B-A3B-Instruct",
)
NAMES = {"norm_eps": "rms_norm_eps", "num_experts": "n_routed_experts"}
SIZES = {"kv_lora_rank": 512, "qk_rope_head_dim": 64, "qk_nope_head_dim": 128, "v_head_dim": 128, "q_lora_rank": 1536}


def spec(config: Config) -> DecoderSpec:
    """Layers that predict further tokens: mtp.py."""
    refuse(config, scoring_func="sigmoid", topk_method="noaux_tc", moe_layer_freq=1)
    dense = config.integer("first_k_dense_replace", 3)
    return latent_decoder("deepseek_v3", config, SIZES, **dense_first(config, dense, routed_experts(config)))


def routed_experts(config: Config) -> Experts:
    """Those of each layer behind the dense ones: chosen out of the best groups of experts."""
    return deepseek_experts(
        config,
        shared=config.integer("n_shared_experts", 1),
        groups=config.integer("n_group", 8),
        groups_per_token=config.integer("topk_group", 4),
        scaling=config.number("routed_scaling_factor", 2.5),
    )


def weights(spec: DecoderSpec) -> dict[str, Source]:
    """Those of latent attention, and DeepSeek's names of experts."""
    return latent_weights(spec)
