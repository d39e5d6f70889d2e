"""Hunyuan-A13B: Hunyuan with many experts and a shared one."""

from __future__ import annotations

from ipex_assist.models import hunyuan_v1_dense
from ipex_assist.models.common import experts, llama_like, refuse
from ipex_assist.models.config import Config, NotComputed
from ipex_assist.models.hunyuan_v1_dense import NORMS
from ipex_assist.models.names import MLP, ExpertNames, named
from ipex_assist.models.spec import DecoderSpec
from ipex_assist.models.weights import Source

ARCHITECTURE = "HunYuanMoEV1ForCausalLM"
EXAMPLES = ("tencent/Hunyuan-A13B-Instruct",)
NAMES = {
    "norm_eps": "rms_norm_eps",
    "num_experts_per_tok": "moe_topk",
    "moe_intermediate_size": "intermediate_size",
}
_SHARED = {leaf: f"mlp.shared_mlp.{leaf}" for leaf in MLP}
_NAMES = ExpertNames(router=("mlp.gate.wg",), shared=_SHARED)


def spec(config: Config) -> DecoderSpec:
    """Published configs have a list, one number a layer, where all layers are alike; others are not computed."""
    refuse(config, moe_layer_num_skipped=0)
    alike = dict(config.values)
    for name in ("moe_topk", "moe_intermediate_size", "num_shared_expert"):
        each = alike.get(name)
        if isinstance(each, list) and each:
            if any(value != each[0] for value in each):
                raise NotComputed(f"{name} that differs by the layer is not supported")
            alike[name] = each[0]
    size = alike.get("intermediate_size")
    refuse(Config(alike), num_shared_expert=1, moe_intermediate_size=size)
    config = Config(alike, config.other_names)
    fields = hunyuan_v1_dense.shared(config)
    made = experts(config, shared_size=config.integer("moe_intermediate_size"))
    return llama_like("hunyuan_v1_moe", config, **fields, experts=made)


def weights(spec: DecoderSpec) -> dict[str, Source]:
    """Qwen's names of experts, and others of the router, the shared expert and the norms of heads."""
    return named(spec, norms=NORMS, experts=_NAMES)
