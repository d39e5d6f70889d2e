"""Hunyuan 4: sparse attention over latents with sinks and gates, and four residual streams."""

from __future__ import annotations

from ipex_assist.models.common import check_kinds, deepseek_experts, layer_count, refuse, sparse_kinds
from ipex_assist.models.config import Config, NotComputed
from ipex_assist.models.latent import check_layer_types, latent_decoder, latent_weights, with_indexers
from ipex_assist.models.names import also_named, sinks, streams
from ipex_assist.models.spec import DecoderSpec
from ipex_assist.models.stream_spec import StreamSpec
from ipex_assist.models.weights import Source

ARCHITECTURE = "HYV4ForCausalLM"
EXAMPLES = ("tencent/Hy4-preview",)
NAMES = {"norm_eps": "rms_norm_eps", "num_experts": "n_routed_experts"}
SIZES = {"kv_lora_rank": 512, "qk_rope_head_dim": 64, "qk_nope_head_dim": 192, "v_head_dim": 256, "q_lora_rank": 1536}


def spec(config: Config) -> DecoderSpec:
    """Layers that predict further tokens: mtp.py."""
    check_layer_types(config)
    refuse(config, hidden_act="silu")  # of experts it is that whatever the config says
    limit, epsilon = config.number("swiglu_limit", 10.0), config.number("norm_eps", 1e-5)
    if limit <= 0:
        # transformers clamps by it whatever it is, although its config says that such a number disables that.
        raise NotComputed(f"swiglu_limit {limit} is not supported, only numbers above 0")
    count = config.integer("hc_mult", 4)
    if count < 2:
        raise NotComputed(f"hc_mult {count} is not supported, only several streams")
    routed = deepseek_experts(
        config,
        shared=config.integer("n_shared_experts", 1),
        scaling=config.number("routed_scaling_factor", 2.827),
        limit=limit,
        limits_gates=True,
    )
    eps = config.number("hc_eps", 1e-6)
    made = latent_decoder(
        *("hy_v4", config, SIZES),
        pairs=False,
        experts=routed,
        sparse=sparse_kinds(config),
        norm_eps=epsilon,
        attention_sinks=True,
        output_gate=True,
        streams=StreamSpec(count, eps=eps, gain=config.number("hc_magnitude", 2.0), gain_eps=eps),
    )
    return with_indexers(made, config, [kind == "shared" for kind in _kinds(config)], heads=16, norm_eps=epsilon)


def _kinds(config: Config) -> list[str]:
    """Which layers have an indexer: as they are listed, or the first and every fourth from the second on."""
    kinds = config.optional_texts("indexer_types")
    if kinds is None:
        kinds = ["full" if i == 0 or i % 4 == 1 else "shared" for i in range(layer_count(config))]
    check_kinds(kinds, "full", "shared", what="indexers")
    return kinds


def weights(spec: DecoderSpec) -> dict[str, Source]:
    """Those of latent attention; an indexer's last values are rotated, which are the first ones here."""
    latent = spec.layers[0].attention.latent
    assert latent is not None
    made = latent_weights(
        spec,
        pairs=False,
        index_rotated={"last_first": latent.rope_dim},
        linears={"g_proj": "self_attn.gate_proj"},
    )
    # transformers writes the names of the published checkpoint, and reads its own as well.
    made = also_named(made, {".gate_proj": ".linear_gate"}) | also_named(
        sinks(spec), {".sinks": ".learnable_sink_param"}
    )
    return made | streams(spec, _STREAMS)


_STREAMS = {
    "attention_hc": ("attn_hc.{}", "hc_attn_layer.hc_pre.hc_{}", "hc_pre.hc_attn_layer.hc_{}", "hc_attn_layer.hc_{}"),
    "mlp_hc": ("ffn_hc.{}", "hc_mlp_layer.hc_pre.hc_{}", "hc_pre.hc_mlp_layer.hc_{}", "hc_mlp_layer.hc_{}"),
    "head_hc": ("hc_head.hc_{}", "hc_head.hc_pre.hc_head_{}", "hc_pre.hc_head.hc_head_{}", "hc_head.hc_head_{}"),
}
