"""LongCat-Flash: latent attention and an MLP twice a layer, beside experts, of which some give what they read."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from ipex_assist.models.common import activation, experts, layer_count, refuse
from ipex_assist.models.config import Config, ConfigError
from ipex_assist.models.latent import latent_decoder, latent_weights
from ipex_assist.models.mlp_spec import MlpSpec
from ipex_assist.models.names import MLP, ExpertNames, renamed
from ipex_assist.models.ranges import check_range
from ipex_assist.models.spec import RANGES, DecoderSpec
from ipex_assist.models.weights import Source

ARCHITECTURE = "LongcatFlashForCausalLM"
EXAMPLES = ("meituan-longcat/LongCat-Flash-Chat", "meituan-longcat/LongCat-Flash-Thinking")
NAMES = {
    **{"norm_eps": "rms_norm_eps", "num_hidden_layers": "num_layers", "intermediate_size": "ffn_hidden_size"},
    **{"num_experts": "n_routed_experts", "num_experts_per_tok": "moe_topk"},
    "moe_intermediate_size": "expert_ffn_hidden_size",
}
SIZES = {"kv_lora_rank": 512, "qk_rope_head_dim": 64, "qk_nope_head_dim": 128, "v_head_dim": 128, "q_lora_rank": 1536}
_USUAL = {
    **{"num_layers": 28, "ffn_hidden_size": 12288, "moe_topk": 12, "n_routed_experts": 512},
    **{"expert_ffn_hidden_size": 2048, "rms_norm_eps": 1e-5, "max_position_embeddings": 131072},
}
_EXPERTS = ExpertNames(
    router=("mlp.router.classifier",),
    shared={leaf: f"mlps.0.{leaf}" for leaf in MLP},
    correction_bias=("mlp.router.e_score_correction_bias",),
)


def spec(config: Config) -> DecoderSpec:
    """A layer is two of ours. Its experts and its first MLP, which is their shared one here, read the same rows; what
    experts give is added after the second MLP.
    """
    refuse(config, zero_expert_type="identity", attention_method="MLA", norm_topk_prob=False, mla_scale_q_lora=True)
    refuse(config, mla_scale_kv_lora=True, router_bias=False)
    given = {name: value for name, value in config.values.items() if value is not None}
    config = Config({"rope_theta": 10000000.0, **_USUAL, **given}, config.other_names)
    rows = [config.integer(name, SIZES[name]) for name in ("qk_nope_head_dim", "qk_rope_head_dim")]
    refuse(config, qk_head_dim=sum(rows))
    mlp = MlpSpec(config.integer("intermediate_size"), activation(config.text("hidden_act", "silu")))
    routed = experts(
        config,
        correction_bias=True,
        normalised=False,
        scaling=config.number("routed_scaling_factor", 6.0),
        shared_size=mlp.intermediate_size,
        identity=config.integer("zero_expert_num", 256),
    )
    count = layer_count(config)
    check_range("num_layers", 2 * count, RANGES["num_hidden_layers"])
    alike = latent_decoder("longcat_flash", config, SIZES, experts=routed, norm_eps=config.number("norm_eps"))
    first = replace(alike.layers[0], defers=True)
    second = replace(first, mlp=mlp, defers=False)
    if first.attention.latent is None or first.attention.latent.query_rank is None:
        raise ConfigError("q_lora_rank", None, "given")
    return replace(alike, layers=(first, second) * count)


def weights(spec: DecoderSpec) -> dict[str, Source]:
    """Those of latent attention, whose rows of queries and latents grow with the width that they are made of."""
    latent = spec.layers[0].attention.latent
    assert latent is not None
    assert latent.query_rank is not None
    ranks = {"q_a_norm": latent.query_rank, "kv_a_norm": latent.rank}
    made = {}
    for ours, source in latent_weights(spec, experts=_EXPERTS).items():
        place, _, rest = ours.partition(".")
        if place == "layers":
            number, leaf = rest.split(".")[:2]
            if leaf in ranks:
                source = replace(source, factor=math.sqrt(spec.hidden_size / ranks[leaf]))
            source = renamed(source, _published(int(number)))
        made[ours] = source
    return made


def _published(number: int) -> Any:
    layer, half = divmod(number, 2)
    parts = {
        f"layers.{number}.": f"layers.{layer}.",
        **{f"{part}.": f"{part}.{half}." for part in ("self_attn", "input_layernorm", "post_attention_layernorm")},
        **({f"mlp.{leaf}": f"mlps.1.{leaf}" for leaf in MLP} if half else {}),
    }

    def names(name: str) -> list[str]:
        for ours, theirs in parts.items():
            name = name.replace(ours, theirs, 1)
        return [name]

    return names
