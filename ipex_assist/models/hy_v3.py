"""Hunyuan 3: Qwen3's attention, and DeepSeek's mixture of experts after a dense first layer."""

from __future__ import annotations

from ipex_assist.models.common import llama_like, refuse, rope, sparse_fields
from ipex_assist.models.config import Config
from ipex_assist.models.names import HEAD_NORMS, LLAMA_NORMS, SHARED_EXPERTS, ExpertNames, also_named, named
from ipex_assist.models.spec import DecoderSpec
from ipex_assist.models.weights import Source

ARCHITECTURE = "HYV3ForCausalLM"
EXAMPLES = ("tencent/Hy3-preview",)
NAMES = {"norm_eps": "rms_norm_eps", "routed_scaling_factor": "router_scaling_factor"}
_EXPERTS = ExpertNames(
    ("mlp.router.gate", "mlp.gate"),
    shared=SHARED_EXPERTS,
    correction_bias=("mlp.expert_bias", "mlp.e_score_correction_bias"),
)


def spec(config: Config) -> DecoderSpec:
    """`attention_bias` puts a bias on all four projections of attention; biases of MLPs are not computed."""
    refuse(config, mlp_bias=False, qk_norm=True, route_norm=True, moe_router_use_sigmoid=True)
    bias, scaling = config.flag("attention_bias", False), config.number("routed_scaling_factor", 2.826)
    return llama_like(
        "hy_v3",
        config,
        num_key_value_heads=config.integer("num_key_value_heads", 8),
        head_dim=config.integer("head_dim", 128),
        norm_eps=config.number("norm_eps", 1e-5),
        qk_norm="head",
        ropes=(rope(config, 11158840.0),),
        qkv_bias=bias,
        output_bias=bias,
        **sparse_fields(
            config, shared=config.integer("num_shared_experts", 1), scaling=scaling, normalised=True, groups=1
        ),
    )


def weights(spec: DecoderSpec) -> dict[str, Source]:
    """Qwen's names of experts; the shared one has its maker's name, or DeepSeek's."""
    sources = named(spec, norms={**LLAMA_NORMS, **HEAD_NORMS}, experts=_EXPERTS)
    return also_named(sources, {"mlp.shared_experts.": "mlp.shared_mlp."})
