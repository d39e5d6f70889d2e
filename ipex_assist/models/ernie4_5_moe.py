"""ERNIE 4.5's mixtures: experts by softmax scores with a correction bias, and dense layers before and after them."""

from __future__ import annotations

from ipex_assist.models import ernie4_5
from ipex_assist.models.common import experts, layer_count, llama_like, refuse
from ipex_assist.models.config import Config, ConfigError
from ipex_assist.models.names import SHARED_EXPERTS, ExpertNames, named, rotated_by_pairs
from ipex_assist.models.spec import DecoderSpec, LayerSpec
from ipex_assist.models.weights import Source

ARCHITECTURE = "Ernie4_5_MoeForCausalLM"
EXAMPLES = ("baidu/ERNIE-4.5-21B-A3B-PT", "baidu/ERNIE-4.5-300B-A47B-PT")
NAMES = {
    "norm_eps": "rms_norm_eps",
    "num_experts": "moe_num_experts",
    "num_experts_per_tok": "moe_k",
    "least_sum": "moe_norm_min",
}
_BIAS = "moe_statics.e_score_correction_bias"
_NAMES = ExpertNames(shared=SHARED_EXPERTS, correction_bias=(f"mlp.{_BIAS}", f"mlp.gate.{_BIAS}"))


def spec(config: Config) -> DecoderSpec:
    """Every moe_layer_interval-th layer within moe_layer_start_index and moe_layer_end_index has experts; no biases."""
    refuse(config, use_bias=False)
    layers, every = layer_count(config), config.integer("moe_layer_interval", 1)
    if every < 1:
        raise ConfigError("moe_layer_interval", every, "at least 1")
    first, last = config.integer("moe_layer_start_index", 1), config.integer("moe_layer_end_index", -1)
    last = layers - 1 if last == -1 else last
    sparse = [first <= layer <= last and (layer + 1) % every == 0 for layer in range(layers)]
    made = experts(
        config,
        correction_bias=True,
        normalised=True,
        least_sum=config.number("least_sum", 1e-12),
        shared_size=config.integer("moe_num_shared_experts", 2) * config.integer("moe_intermediate_size"),
    )
    mixture = {"experts": made, "sparse": sparse} if any(sparse) else {}
    return llama_like("ernie4_5_moe", config, **ernie4_5.shared(config), **mixture)


def layer_after(config: Config, number: int) -> LayerSpec:
    """Dense."""
    return spec(config.but(num_hidden_layers=1, moe_layer_start_index=1)).layers[0]


def weights(spec: DecoderSpec) -> dict[str, Source]:
    """Qwen's names of experts, DeepSeek's of shared ones."""
    return named(spec, fields=rotated_by_pairs(spec), experts=_NAMES)
