"""Qwen4, the text part: Qwen3.5-MoE with gated residuals, and pools of positions that rows choose."""

from __future__ import annotations

from dataclasses import replace

from ipex_assist.models import qwen3_5_text
from ipex_assist.models.choice_spec import IndexerSpec
from ipex_assist.models.common import FULL, experts, layer_count, refuse
from ipex_assist.models.config import Config, ConfigError, NotComputed
from ipex_assist.models.gated_delta import LINEAR, hybrid
from ipex_assist.models.names import MIXER_GATE, MLP_GATE
from ipex_assist.models.recurrent_spec import RecurrentSpec
from ipex_assist.models.spec import DecoderSpec, LayerSpec
from ipex_assist.models.stream_spec import HEAD_GATE, StreamSpec
from ipex_assist.models.weights import Source

ARCHITECTURE = "Qwen4ExpForCausalLM"
EXAMPLES = ("Qwen/Qwen4-Exp",)
NAMES = {"norm_eps": "rms_norm_eps"}
_INDEXED = "indexed_attention"
_GATES = ("input_mix_weight_down", "input_mix_weight_up")
_PLACES = {"attention": "attn_hyper_connection", "mlp": "mlp_hyper_connection"}
_NORMS = {f"{ours}_norm": f"{theirs}.hc_norm" for ours, theirs in _PLACES.items()}
_INDEX_NORMS = {f"index_{part}_norm": f"self_attn.indexer.{part}_layernorm" for part in ("q", "k")}
_INDEXER_FIELDS = ("n_heads", "head_dim", "budget", "compress_ratio")
_LANES = 16  # columns that are multiplied together
_KEPT = 256  # positions of a block of keys and values
_OUTSIDE = {"embed_tokens": "model.embed_tokens", "lm_head": "lm_head"} | {
    "final_norm": "model.hyper_connection_mixer.hc_norm",
    **{ours: f"model.hyper_connection_mixer.{theirs}" for ours, theirs in zip(HEAD_GATE, _GATES, strict=True)},
}
_LINEARS = {f"{ours}_hc": f"{theirs}.block_inject_weight" for ours, theirs in _PLACES.items()} | {
    ours: f"{place}.{theirs}"
    for gate, place in zip((MIXER_GATE, MLP_GATE), _PLACES.values(), strict=True)
    for ours, theirs in zip(gate, _GATES, strict=True)
}


def spec(config: Config) -> DecoderSpec:
    """Every layer has experts and a shared one that a sigmoid weights. Published configs say "full_attention"."""
    if config.values.get("ple_layer_ids"):
        raise NotComputed("ple_layer_ids is not supported, only layers without embeddings of n-grams")
    count = layer_count(config)
    every = config.integer("full_attention_interval", 4)
    usual = [LINEAR if every < 1 or (layer + 1) % every else FULL for layer in range(count)]
    kinds = [FULL if kind == _INDEXED else kind for kind in config.optional_texts("layer_types") or usual]
    size = config.integer("shared_expert_intermediate_size", 512)
    normalised = config.flag("norm_topk_prob", True)
    routed = experts(config, shared_size=size, shared_gate=True, normalised=normalised)
    made = hybrid(
        "qwen4_exp_text", Config({**config.values, "layer_types": kinds}, config.other_names), 1.0, experts=routed
    )
    rank = config.integer("hc_lowrank", 320)
    streams = StreamSpec(config.integer("hc_count", 4), eps=0.0, gate_rank=rank)
    if not rank:
        raise ConfigError("hc_lowrank", rank, "at least 1")
    gate = config.values.get("output_gate_type") or config.text("hidden_act", "silu")
    if gate not in ("sigmoid", "silu"):
        raise NotComputed(f"output_gate_type {gate!r} is not supported, only 'sigmoid' and 'silu'")
    indexer = _indexer(config, made.norm_eps) if FULL in kinds else None
    layers = (_layer(layer, rank, gate == "sigmoid", indexer) for layer in made.layers)
    return replace(made, layers=tuple(layers), streams=streams)


def _indexer(config: Config, norm_eps: float) -> IndexerSpec:
    """Raises NotComputed for pools that our blocks of keys and values are no multiple of, and for other widths."""
    refuse(config, indexer_kv_heads=1)
    heads, dim, budget, pool = (config.integer(f"indexer_{name}") for name in _INDEXER_FIELDS)
    if pool < 1 or budget % pool:
        raise ConfigError("indexer_budget", budget, f"a multiple of indexer_compress_ratio, {pool}")
    if _KEPT % pool or dim % _LANES:
        raise NotComputed(
            f"indexer_compress_ratio {pool} and indexer_head_dim {dim} are not supported, only parts of {_KEPT}, and "
            f"multiples of {_LANES}"
        )
    return IndexerSpec(budget, heads, dim, norm_eps, pool=pool, means=True)


def _layer(layer: LayerSpec, rank: int, sigmoid: bool, indexer: IndexerSpec | None) -> LayerSpec:
    mixer = layer.mixer
    if isinstance(mixer, RecurrentSpec):
        mixer = replace(mixer, sigmoid_gate=sigmoid)
    else:
        mixer = replace(mixer, indexer=indexer)
    return replace(layer, mixer=mixer, mixer_gate_rank=rank, mlp_gate_rank=rank)


def weights(spec: DecoderSpec) -> dict[str, Source]:
    """Norms weight by 1 + w, but for those of recurrent layers."""
    index = next((each.indexer for each in spec.attentions if each.indexer is not None), IndexerSpec(1, means=True))
    queries = index.heads * index.dim
    rows = {"index_q_proj": {"rows": (0, queries)}, "index_k_proj": {"rows": (queries, queries + index.dim)}}
    linears = _LINEARS | dict.fromkeys(rows, "self_attn.indexer.index_qk_proj")
    shifted = {leaf: {"plus": 1.0} for leaf in _INDEX_NORMS}
    return qwen3_5_text.weights(
        spec, {**rows, **shifted}, norms=_NORMS, linears=linears | _INDEX_NORMS, outside=_OUTSIDE
    )
