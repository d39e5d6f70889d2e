"""GLM-5: DeepSeek-V3.2's sparse attention, where some layers attend to what an earlier one has chosen."""

from __future__ import annotations

from ipex_assist.models.common import deepseek_experts, refuse, sparse_kinds
from ipex_assist.models.config import Config
from ipex_assist.models.latent import check_layer_types, indexer_kinds, latent_decoder, latent_weights, with_indexers
from ipex_assist.models.spec import DecoderSpec
from ipex_assist.models.weights import Source

ARCHITECTURE = "GlmMoeDsaForCausalLM"
EXAMPLES = ("zai-org/GLM-5", "zai-org/GLM-5-FP8")
NAMES = {"norm_eps": "rms_norm_eps", "num_experts": "n_routed_experts"}
SIZES = {"kv_lora_rank": 512, "qk_rope_head_dim": 64, "qk_nope_head_dim": 192, "v_head_dim": 256, "q_lora_rank": 2048}


def spec(config: Config) -> DecoderSpec:
    """Layers that predict further tokens: mtp.py."""
    refuse(config, scoring_func="sigmoid", topk_method="noaux_tc", moe_layer_freq=1, mlp_bias=False)
    refuse(config, indexer_rope_interleave=True)
    check_layer_types(config)
    routed = deepseek_experts(
        config,
        shared=config.integer("n_shared_experts", 1),
        scaling=config.number("routed_scaling_factor", 2.5),
    )
    made = latent_decoder(
        *("glm_moe_dsa", config, SIZES),
        experts=routed,
        sparse=sparse_kinds(config, 3),
        norm_eps=config.number("norm_eps", 1e-5),
    )
    return with_indexers(made, config, [kind == "shared" for kind in indexer_kinds(config)], heads=32)


def weights(spec: DecoderSpec) -> dict[str, Source]:
    """Those of latent attention, of which the indexer rotates pairs as well, and DeepSeek's names of experts."""
    latent = spec.layers[0].attention.latent
    assert latent is not None
    return latent_weights(spec, index_rotated={"pairs": latent.rope_dim})
