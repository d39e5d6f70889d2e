"""GLM-5.3 Flash: Kimi Delta Attention, sparse attention by pools of positions in every fourth layer, four streams."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ipex_assist.models import kimi_linear
from ipex_assist.models.common import (
    FULL,
    check_kinds,
    deepseek_experts,
    layer_count,
    number_or_none,
    refuse,
    sparse_kinds,
    text_part,
)
from ipex_assist.models.config import Config, ConfigError, NotComputed
from ipex_assist.models.gated_delta import LINEAR
from ipex_assist.models.latent import (
    DEEPSEEK_EXPERTS,
    indexer_kinds,
    latent_spec,
    with_indexers,
    with_latents,
)
from ipex_assist.models.layers import with_mixers
from ipex_assist.models.mlp_spec import MlpSpec
from ipex_assist.models.names import inside, renamed, streams
from ipex_assist.models.recurrent_spec import RecurrentSpec
from ipex_assist.models.spec import DecoderSpec
from ipex_assist.models.stream_spec import StreamSpec
from ipex_assist.models.weights import Source

ARCHITECTURE = "Glm5NextForConditionalGeneration"
EXAMPLES = ("zai-org/GLM-5.3-Flash",)
NAMES = {
    **{"norm_eps": "rms_norm_eps", "num_experts": "n_routed_experts"},
    **{"linear_num_value_heads": "linear_num_heads", "linear_key_head_dim": "linear_head_dim"},
}
_SIZES = {"kv_lora_rank": 512, "qk_rope_head_dim": 0, "qk_nope_head_dim": 256, "v_head_dim": 256, "q_lora_rank": 1536}
_INDEXED = "indexed_attention"
# Of `linear_attn_config`, which stands before the fields of these names.
_INNER = {"linear_head_dim": "head_dim", "linear_num_heads": "num_heads", "linear_lower_bound": "gate_lower_bound"}
_INNER |= {"linear_conv_kernel_dim": "short_conv_kernel_size"}
_POOLS = 16  # positions that one thread stores keys of


def spec(config: Config) -> DecoderSpec:
    """That of the text part. Layers that predict further tokens: mtp.py."""
    text = _with_inner_names(text_part(config))
    refuse(text, hidden_act="silu", qk_rope_head_dim=0, index_kpool_always_select_tail=True, first_k_dense_replace=3)
    refuse(text, num_key_value_heads=text.integer("num_attention_heads"))
    eps, limit = text.number("norm_eps", 1e-5), text.number("swiglu_limit", 10.0)
    if limit <= 0:  # transformers clamps by it whatever it is
        raise NotComputed(f"swiglu_limit {limit} is not supported, only numbers above 0")
    latent = replace(latent_spec(text, _SIZES), norm_eps=eps)
    sparse = sparse_kinds(text, 3)
    routed = deepseek_experts(
        text,
        shared=text.integer("n_shared_experts", 1),
        scaling=text.number("routed_scaling_factor", 2.5),
        **{"limit": limit, "shared_limit": limit, "limits_gates": True},
    )
    experts: dict[str, Any] = {"experts": routed, "sparse": sparse} if any(sparse) else {}
    alike = with_latents(
        *("glm5_next", text, latent),
        attention_scale=latent.nope_dim**-0.5,
        ropes=(),
        norm_eps=eps,
        max_position_embeddings=text.integer("max_position_embeddings", 1 << 20),
        streams=_streams(text),
        **experts,
    )
    limited = (
        replace(each, mlp=replace(each.mlp, limit=limit, limits_gates=True)) if isinstance(each.mlp, MlpSpec) else each
        for each in alike.layers
    )
    kinds = _kinds(text)
    indexed = with_indexers(
        replace(alike, layers=tuple(limited)), text, _shared(text, kinds), heads=32, pool=_pool(text)
    )
    mixer = _kimi_delta(text)
    return with_mixers(indexed, [mixer if kind == LINEAR else None for kind in kinds])


def _with_inner_names(text: Config) -> Config:
    """The config with what `linear_attn_config` has in the place of its other values."""
    inner = text.part("linear_attn_config")
    found = {ours: inner[theirs] for ours, theirs in _INNER.items() if theirs in inner}
    made = Config({**text.values, **found}, text.other_names)
    bound = number_or_none(made, "linear_lower_bound", -5.0)
    if inner and bound is None and Config(inner).flag("safe_gate", True):
        return Config({**made.values, "linear_lower_bound": -5.0}, text.other_names)
    return made


def _kimi_delta(text: Config) -> RecurrentSpec:
    heads, dim = text.integer("linear_num_value_heads", 64), text.integer("linear_key_head_dim", 128)
    kernel, bound = text.integer("linear_conv_kernel_dim", 4), number_or_none(text, "linear_lower_bound", -5.0)
    return RecurrentSpec("kimi_delta", heads, heads, dim, dim, kernel, gate_rank=dim, decay_bound=bound)


def _streams(text: Config) -> StreamSpec:
    count, steps = text.integer("hc_mult", 4), text.integer("hc_sinkhorn_iters", 20)
    if count < 2:
        raise NotComputed(f"hc_mult {count} is not supported, only several streams")
    # The first of them is made whatever their number is.
    return StreamSpec(count, max(1, steps), eps=text.number("hc_eps", 1e-6), averaged=True)


def _kinds(text: Config) -> list[str]:
    """Of layers: as they are listed, or attention in every fourth."""
    kinds = text.optional_texts("layer_types")
    if kinds is None:
        kinds = [_INDEXED if layer % 4 == 3 else LINEAR for layer in range(layer_count(text))]
    check_kinds(kinds, _INDEXED, FULL, LINEAR)
    if LINEAR not in kinds:
        # Without states any number of tokens could be taken back, and of open pools only the last are kept.
        raise NotComputed("pools of positions in a model without linear attention are not supported")
    return kinds


def _shared(text: Config, kinds: list[str]) -> list[bool]:
    """Which layers attend to what the one before them has chosen. Raises NotComputed where that chooses nothing."""
    of_all = indexer_kinds(text)
    shared = [kind != LINEAR and own == "shared" for kind, own in zip(kinds, of_all, strict=True)]
    for layer, each in enumerate(shared):
        if each and (layer == 0 or kinds[layer - 1] == LINEAR or of_all[layer - 1] == "shared"):
            raise NotComputed(f"layer {layer} attends to what the one before it has chosen, which chooses nothing")
    return shared


def _pool(text: Config) -> int:
    pool = text.integer("index_kpool", 16)
    if pool < 1:
        raise ConfigError("index_kpool", pool, "at least 1")
    if _POOLS % pool:
        raise NotComputed(f"index_kpool {pool} is not supported, only divisors of {_POOLS}")
    return pool


def weights(spec: DecoderSpec) -> dict[str, Source]:
    """By published names, and by those that transformers has while it runs, in the place of a part."""
    made = kimi_linear.delta_weights(spec, DEEPSEEK_EXPERTS, kimi_linear.RECURRENT)
    return inside({ours: renamed(source, _names) for ours, source in made.items()} | streams(spec, _STREAMS))


_STREAMS = {"attention_hc": ("hc_attn_{}", "attn_hc.{}"), "mlp_hc": ("hc_ffn_{}", "ffn_hc.{}")}


def _names(name: str) -> list[str]:
    return [name, kimi_linear.in_forget_gate(name)]
