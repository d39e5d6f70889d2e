"""K-EXAONE: EXAONE 4's attention after norms, and DeepSeek's mixture of experts after dense first layers."""

from __future__ import annotations

from ipex_assist.models import exaone4
from ipex_assist.models.common import llama_like, sparse_fields
from ipex_assist.models.config import Config
from ipex_assist.models.names import HEAD_NORMS, LLAMA_NORMS, SHARED_EXPERTS, ExpertNames, named
from ipex_assist.models.spec import DecoderSpec, LayerSpec
from ipex_assist.models.weights import Source

ARCHITECTURE = "ExaoneMoeForCausalLM"
EXAMPLES = ("LGAI-EXAONE/K-EXAONE-236B-A23B",)
NAMES = {"norm_eps": "rms_norm_eps"}
_BIAS = "e_score_correction_bias"
_NAMES = ExpertNames(shared=SHARED_EXPERTS, correction_bias=(f"mlp.gate.{_BIAS}", f"mlp.{_BIAS}"))


def spec(config: Config) -> DecoderSpec:
    """Which layers have experts, `mlp_layer_types` says, or first_k_dense_replace."""
    shared, scaling = config.integer("num_shared_experts", 1), config.number("routed_scaling_factor", 2.5)
    return llama_like(
        "exaone_moe",
        config,
        norm_eps=config.number("norm_eps", 1e-5),
        qk_norm="head",
        **exaone4.positions(config),
        **sparse_fields(config, shared=shared, scaling=scaling),
    )


def layer_after(config: Config, number: int) -> LayerSpec:
    """Dense, and as `mtp_layer_types` says."""
    kinds = config.optional_texts("mtp_layer_types") or ["full_attention"]
    return spec(config.but(num_hidden_layers=1, layer_types=kinds[:1], mlp_layer_types=["dense"])).layers[0]


def weights(spec: DecoderSpec) -> dict[str, Source]:
    """Qwen's names of experts, DeepSeek's of shared ones."""
    return named(spec, norms={**LLAMA_NORMS, **HEAD_NORMS}, experts=_NAMES)
