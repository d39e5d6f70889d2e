"""DeepSeek-V2 and V2-Lite: latent attention, and many small experts by softmax scores after dense first layers."""

from __future__ import annotations

from ipex_assist.models.common import dense_first, experts, refuse
from ipex_assist.models.config import Config, NotComputed
from ipex_assist.models.latent import latent_decoder, latent_weights
from ipex_assist.models.spec import DecoderSpec
from ipex_assist.models.weights import Source

ARCHITECTURE = "DeepseekV2ForCausalLM"
EXAMPLES = ("deepseek-ai/DeepSeek-V2-Lite-Chat", "deepseek-ai/DeepSeek-V2-Chat", "deepseek-ai/DeepSeek-V2.5")
NAMES = {"norm_eps": "rms_norm_eps", "num_experts": "n_routed_experts"}
SIZES = {"kv_lora_rank": 512, "qk_rope_head_dim": 64, "qk_nope_head_dim": 128, "v_head_dim": 128, "q_lora_rank": 1536}


def spec(config: Config) -> DecoderSpec:
    """Groups of experts are judged by their best one; a row's weights do not sum to 1."""
    refuse(config, mlp_bias=False, norm_topk_prob=False, scoring_func="softmax", moe_layer_freq=1)
    method = config.text("topk_method", "greedy")
    if method not in ("greedy", "group_limited_greedy"):
        raise NotComputed(f"topk_method {method!r} is not supported, only 'greedy' and 'group_limited_greedy'")
    grouped = method != "greedy"
    routed = experts(
        config,
        normalised=False,
        groups=config.integer("n_group") if grouped else 1,
        groups_per_token=config.integer("topk_group") if grouped else 1,
        best_of_group=1,
        scaling=config.number("routed_scaling_factor", 1.0),
        shared_size=config.integer("n_shared_experts", 2) * config.integer("moe_intermediate_size"),
    )
    return latent_decoder(
        "deepseek_v2", config, SIZES, **dense_first(config, config.integer("first_k_dense_replace", 0), routed)
    )


def weights(spec: DecoderSpec) -> dict[str, Source]:
    """Those of latent attention, and DeepSeek's names of experts."""
    return latent_weights(spec)
