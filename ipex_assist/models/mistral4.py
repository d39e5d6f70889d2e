"""Mistral Small 4's text part: latent attention, queries that grow with their position, and experts by softmax."""

from __future__ import annotations

from ipex_assist.models.common import deepseek_experts, dense_first, rope, rotary_part
from ipex_assist.models.config import Config, NotComputed
from ipex_assist.models.latent import latent_decoder, latent_weights
from ipex_assist.models.spec import DecoderSpec
from ipex_assist.models.weights import Source

ARCHITECTURE = "Mistral4ForCausalLM"
EXAMPLES = ("mistralai/Mistral-Small-4-119B-2603",)
NAMES = {"norm_eps": "rms_norm_eps", "num_experts": "n_routed_experts"}
_SIZES = {"kv_lora_rank": 256, "qk_rope_head_dim": 64, "qk_nope_head_dim": 64, "v_head_dim": 128, "q_lora_rank": 1024}
_ROPE = {
    **{"rope_type": "yarn", "rope_theta": 10000.0, "factor": 128.0, "original_max_position_embeddings": 8192},
    **{"beta_fast": 32.0, "beta_slow": 1.0, "mscale": 1.0, "mscale_all_dim": 1.0, "llama_4_scaling_beta": 0.1},
}


def spec(config: Config) -> DecoderSpec:
    """`head_dim` is what is rotated and what is not, of which `partial_rotary_factor` is the part."""
    values = {name: value for name, value in config.values.items() if name != "head_dim"}
    if not (config.part("rope_parameters") or config.part("rope_scaling")):
        values["rope_parameters"] = _ROPE
    config = Config(values, config.other_names)
    numbers = Config(config.part("rope_parameters") or config.part("rope_scaling"))
    rotated = config.integer("qk_rope_head_dim", 64)
    whole = rotated + config.integer("qk_nope_head_dim", 64)
    if rotary_part(config, whole, rotated / max(whole, 1)) != rotated:
        raise NotComputed(f"rotary positions over another part of a head than its {rotated} are not supported")
    routed = deepseek_experts(
        config, scores="softmax", correction_bias=False, shared=config.integer("n_shared_experts", 1)
    )
    return latent_decoder(
        "mistral4",
        config,
        _SIZES,
        positions=rope(config, partial=True),
        query_growth=numbers.number("llama_4_scaling_beta"),
        query_growth_step=numbers.optional_integer("original_max_position_embeddings"),
        **dense_first(config, config.integer("first_k_dense_replace", 0), routed),
    )


def weights(spec: DecoderSpec) -> dict[str, Source]:
    """Those of latent attention, and DeepSeek's names of experts."""
    return latent_weights(spec)
