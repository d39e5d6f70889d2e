"""DeepSeek-V3.2: DeepSeek-V3, whose rows attend to the positions that an indexer chooses."""

from __future__ import annotations

from ipex_assist.models import deepseek_v3
from ipex_assist.models.common import layer_count, refuse, sparse_kinds
from ipex_assist.models.config import Config
from ipex_assist.models.latent import check_layer_types, latent_decoder, latent_weights, with_indexers
from ipex_assist.models.spec import DecoderSpec
from ipex_assist.models.weights import Source

ARCHITECTURE = "DeepseekV32ForCausalLM"
EXAMPLES = ("deepseek-ai/DeepSeek-V3.2", "deepseek-ai/DeepSeek-V3.2-Exp")
NAMES = deepseek_v3.NAMES


def spec(config: Config) -> DecoderSpec:
    """Layers that predict further tokens: mtp.py."""
    refuse(config, scoring_func="sigmoid", topk_method="noaux_tc", moe_layer_freq=1, mlp_bias=False)
    check_layer_types(config)
    made = latent_decoder(
        *("deepseek_v32", config, deepseek_v3.SIZES),
        experts=deepseek_v3.routed_experts(config),
        sparse=sparse_kinds(config, 3),
    )
    return with_indexers(made, config, [False] * layer_count(config), heads=64)


def weights(spec: DecoderSpec) -> dict[str, Source]:
    """Those of latent attention, of which the indexer rotates halves, and DeepSeek's names of experts."""
    return latent_weights(spec)
