"""Arcee's Trinity: gated attention, positions in windowed layers alone, norms before and after, DeepSeek's experts."""

from __future__ import annotations

from ipex_assist.models.common import SLIDING, deepseek_experts, dense_first, layer_kinds, llama_like, refuse, windows
from ipex_assist.models.config import Config, ConfigError
from ipex_assist.models.names import HEAD_NORMS, LLAMA_LINEARS, SHARED_EXPERTS, ExpertNames, named
from ipex_assist.models.spec import DecoderSpec
from ipex_assist.models.weights import Source

ARCHITECTURE = "AfmoeForCausalLM"
EXAMPLES = ("arcee-ai/Trinity-Mini", "arcee-ai/Trinity-Nano-Preview")
NAMES = {"norm_eps": "rms_norm_eps", "routed_scaling_factor": "route_scale"}
_NORMS = {
    **{"attention_norm": "input_layernorm", "attention_out_norm": "post_attention_layernorm"},
    **{"mlp_norm": "pre_mlp_layernorm", "mlp_out_norm": "post_mlp_layernorm", **HEAD_NORMS},
}
_EXPERTS = ExpertNames(("mlp.router.gate",), shared=SHARED_EXPERTS, correction_bias=("mlp.expert_bias",))


def spec(config: Config) -> DecoderSpec:
    """`mup_enabled` multiplies the embedding with the root of its width. Biases of attention are not computed."""
    usual = {"score_func": "sigmoid", "route_norm": True, "n_group": 1, "topk_group": 1}
    refuse(config, attention_bias=False, **usual)
    every = config.integer("global_attn_every_n_layers", 4)
    if every < 1:
        raise ConfigError("global_attn_every_n_layers", every, "at least 1")
    kinds = layer_kinds(config, lambda layer: (layer + 1) % every != 0)
    experts = deepseek_experts(config, shared=config.integer("num_shared_experts", 2), normalised=True)
    return llama_like(
        "afmoe",
        config,
        head_dim=config.integer("head_dim", 128),
        norm_eps=config.number("norm_eps", 1e-5),
        norm_place="sandwich",
        qk_norm="head",
        output_gate=True,
        embedding_multiplier=config.integer("hidden_size") ** 0.5 if config.flag("mup_enabled", False) else 1.0,
        layer_ropes=tuple(0 if kind == SLIDING else None for kind in kinds),
        sliding_windows=windows(config, kinds, 1024),
        **dense_first(config, config.integer("num_dense_layers", 1), experts),
    )


def weights(spec: DecoderSpec) -> dict[str, Source]:
    """Qwen's names of experts, DeepSeek's of shared ones."""
    return named(spec, linears={**LLAMA_LINEARS, "g_proj": "self_attn.gate_proj"}, norms=_NORMS, experts=_EXPERTS)
