"""DeepSeek-V4: a window of keys beside entries of many tokens each, four residual streams, and experts by token."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ipex_assist.models.choice_spec import IndexerSpec
from ipex_assist.models.common import check_kinds, deepseek_experts, layer_count, llama_like, refuse, rope, rotary_part
from ipex_assist.models.compressed_spec import CompressedSpec
from ipex_assist.models.config import Config, ConfigError, NotComputed
from ipex_assist.models.layers import with_attention
from ipex_assist.models.mlp_spec import Scores
from ipex_assist.models.names import (
    LLAMA_LINEARS,
    LLAMA_NORMS,
    MLP,
    SHARED_EXPERTS,
    ExpertNames,
    named,
    renamed,
    sinks,
    streams,
)
from ipex_assist.models.rope_spec import Rope
from ipex_assist.models.spec import DecoderSpec, LayerSpec
from ipex_assist.models.stream_spec import StreamSpec
from ipex_assist.models.weights import Source

ARCHITECTURE = "DeepseekV4ForCausalLM"
EXAMPLES = ("deepseek-ai/DeepSeek-V4-Flash", "deepseek-ai/DeepSeek-V4-Pro")
NAMES = {"norm_eps": "rms_norm_eps", "num_experts": "n_routed_experts"}

_SLIDING, _CSA, _HCA = "sliding_attention", "compressed_sparse_attention", "heavily_compressed_attention"
_RATIOS = {0: _SLIDING, 4: _CSA, 128: _HCA}  # of published configs, tokens of an entry
_SCORES: dict[str, Scores] = {"sqrtsoftplus": "sqrt_softplus", "sigmoid": "sigmoid", "softmax": "softmax"}
_HASHED = 3  # layers whose experts are a token's, of a config that does not say it
_LANES = 16  # columns that the native core computes together
_BLOCK = 256  # positions of a block of keys and values, which has the entries of these


def spec(config: Config) -> DecoderSpec:
    """Layers that predict further tokens: mtp.py."""
    refuse(config, num_key_value_heads=1, n_shared_experts=1, mlp_bias=False)
    kinds = _kinds(config)
    ropes = _ropes(config)
    limit, count = config.number("swiglu_limit", 10.0), config.integer("hc_mult", 4)
    if count < 2:
        raise NotComputed(f"hc_mult {count} is not supported, only several streams")
    function = config.text("scoring_func", "sqrtsoftplus")
    if function not in _SCORES:
        raise NotComputed(f"scoring_func {function!r} is not supported; known: {', '.join(_SCORES)}")
    routed = deepseek_experts(
        config,
        shared=1,
        scores=_SCORES[function],
        normalised=True,  # whatever norm_topk_prob says
        groups=1,
        groups_per_token=1,
        scaling=config.number("routed_scaling_factor", 1.5),
        limit=limit,
        shared_limit=limit,
        limits_gates=True,
    )
    latents = {kind: _latent(config, kind) for kind in dict.fromkeys(kinds)}
    first = latents[kinds[0]]
    made = llama_like(
        *("deepseek_v4", config),
        latent=first,
        num_key_value_heads=1,
        head_dim=first.head_dim,
        rotary_dim=first.rope_dim,
        attention_sinks=True,
        experts=routed,
        sparse=[True] * len(kinds),
        norm_eps=config.number("norm_eps", 1e-6),
        ropes=ropes,
        layer_ropes=tuple(int(kind != _SLIDING) for kind in kinds),
        sliding_windows=(config.integer("sliding_window", 128),) * len(kinds),
        streams=StreamSpec(count, max(config.integer("hc_sinkhorn_iters", 20), 1), config.number("hc_eps", 1e-6)),
    )
    layers = with_attention(made.layers, "latent", [latents[kind] for kind in kinds])
    by_token = replace(routed, by_token=True, correction_bias=False)
    hashed = _hashed(config)
    return replace(
        made,
        layers=tuple(
            replace(layer, mlp=by_token) if here else layer for layer, here in zip(layers, hashed, strict=True)
        ),
    )


def layer_after(config: Config, number: int) -> LayerSpec:
    """The layer that predicts further tokens, the first of which has the number 0: with a window alone.

    Raises NotComputed for one with entries, or with experts by tokens.
    """
    at = layer_count(config) + number
    own = slice(at, at + 1)
    ratios, kinds = config.integers("compress_ratios")[own], (config.optional_texts("layer_types") or [])[own]
    mlps, hashed = (config.optional_texts("mlp_layer_types") or [])[own], config.integer("num_hash_layers", 0)
    if any(ratios) or (kinds and kinds != [_SLIDING]):
        raise NotComputed(f"a layer that predicts further tokens with entries (layer {at}) is not supported")
    if mlps == ["hash_moe"] or at < hashed:
        raise NotComputed(f"a layer that predicts further tokens with experts by tokens (layer {at}) is not supported")
    alone = {"num_hidden_layers": 1, "layer_types": [_SLIDING], "compress_ratios": [], "mlp_layer_types": ["moe"]}
    return spec(config.but(**alone)).layers[0]


def _kinds(config: Config) -> list[str]:
    """Of layers: as they are listed, or by tokens of an entry, or two HCA and then these and CSA in turns."""
    count, ratios = layer_count(config), config.integers("compress_ratios")
    kinds = config.optional_texts("layer_types")
    if kinds is None and ratios:
        if unknown := sorted(set(ratios) - set(_RATIOS)):
            raise NotComputed(f"compress_ratios with {unknown[0]} are not supported; known: 0, 4, 128")
        kinds = [_RATIOS[ratio] for ratio in ratios]
    if kinds is None:
        kinds = [_HCA if i < 2 or i % 2 == 0 else _CSA for i in range(count)]
    check_kinds(kinds, _SLIDING, _CSA, _HCA)
    if len(kinds) < count or not kinds[:count]:
        raise ConfigError("layer_types", f"a list of {len(kinds)}", f"one for each of {count} layers")
    return kinds[:count]


def _hashed(config: Config) -> list[bool]:
    """Which layers choose experts by tokens: as they are listed, or the first `num_hash_layers`."""
    count, kinds = layer_count(config), config.optional_texts("mlp_layer_types")
    if kinds is None:
        return [layer < config.integer("num_hash_layers", _HASHED) for layer in range(count)]
    check_kinds(kinds, "hash_moe", "moe", what="MLPs")
    if len(kinds) < count:
        raise ConfigError("mlp_layer_types", f"a list of {len(kinds)}", f"one for each of {count} layers")
    return [kind == "hash_moe" for kind in kinds[:count]]


def _ropes(config: Config) -> tuple[Rope, Rope]:
    """Of layers without entries, and of the others, which alone stretch their context."""
    parts = config.part("rope_parameters") or config.part("rope_scaling")
    if not all(isinstance(parts.get(kind), dict) for kind in ("main", "compress")):
        rule = {name: value for name, value in parts.items() if name not in ("main", "compress")}
        if rule.get("rope_type", rule.get("type")) == "yarn":
            rule = {"attention_factor": 1.0} | rule
        share = {"partial_rotary_factor": parts["partial_rotary_factor"]} if "partial_rotary_factor" in parts else {}
        theta = config.number("compress_rope_theta", 160000.0)
        parts = {
            "main": {"rope_theta": config.number("rope_theta", 10000.0), **share},
            "compress": rule | {"rope_theta": theta},
        }
    made = tuple(
        rope(Config({**config.values, "rope_parameters": parts[kind]}), partial=True) for kind in ("main", "compress")
    )
    if any(each.by_length for each in made):
        raise NotComputed("entries whose rotation depends on a prompt's length are not supported")
    return made[0], made[1]


def _rope_dim(config: Config, head_dim: int) -> int:
    """How many values of a head are rotated: as many in all layers."""
    parts = config.part("rope_parameters") or config.part("rope_scaling")
    given = config.optional_integer("qk_rope_head_dim")
    usual = config.optional_number("partial_rotary_factor")
    if usual is None:
        usual = given / max(head_dim, 1) if given is not None else 64 / 512
    kinds = [part if isinstance(part := parts.get(kind), dict) else parts for kind in ("main", "compress")]
    nested = all(isinstance(parts.get(kind), dict) for kind in ("main", "compress"))
    dims = {rotary_part(Config({"rope_parameters": part}), head_dim, 1.0 if nested else usual) for part in kinds}
    if len(dims) > 1:
        raise NotComputed("heads of which layers rotate different parts are not supported")
    return dims.pop()


def _latent(config: Config, kind: str) -> CompressedSpec:
    """Attention of such layers. Raises NotComputed for widths and rates that we do not have."""
    head_dim = config.integer("head_dim", 512)
    heads, groups = config.integer("num_attention_heads"), config.integer("o_groups", 8)
    if groups < 1 or heads % groups:
        raise ConfigError("o_groups", groups, f"a divisor of the {heads} heads")
    rope_dim = _rope_dim(config, head_dim)
    rates = {_CSA: 4, _HCA: 128, **config.part("compress_rates")}
    legacy = {_CSA: "compress_rate_csa", _HCA: "compress_rate_hca"}
    rate = 0 if kind == _SLIDING else config.integer(legacy[kind], Config(rates).integer(kind))
    window, most = config.integer("sliding_window", 128), 64 if kind == _CSA else 128
    if kind != _SLIDING and (not 2 <= rate <= most or _BLOCK % rate or _BLOCK // rate + window > _BLOCK):
        raise NotComputed(f"entries of {rate} tokens beside a window of {window} are not supported")
    made = CompressedSpec(
        rank=head_dim,
        rope_dim=rope_dim,
        nope_dim=head_dim - rope_dim,
        value_dim=config.integer("o_lora_rank", 1024),
        query_rank=config.integer("q_lora_rank", 1024),
        norm_eps=config.number("norm_eps", 1e-6),
        indexer=_indexer(config) if kind == _CSA else None,
        groups=groups,
        rate=rate,
        overlap=kind == _CSA,
    )
    for name, size in (("head_dim", head_dim), ("qk_rope_head_dim", rope_dim), ("o_lora_rank", made.value_dim)):
        if size % _LANES:
            raise NotComputed(f"{name} {size} is not supported, only multiples of {_LANES}")
    return made


def _indexer(config: Config) -> IndexerSpec:
    sizes = (("index_topk", 512), ("index_n_heads", 64), ("index_head_dim", 128))
    top_k, heads, dim = (config.integer(name, usual) for name, usual in sizes)
    made = IndexerSpec(top_k, heads, dim, config.number("norm_eps", 1e-6))
    if not made.heads:
        raise ConfigError("index_n_heads", 0, "at least 1")
    if made.dim % _LANES:
        raise NotComputed(f"index_head_dim {made.dim} is not supported, only multiples of {_LANES}")
    return made


def weights(spec: DecoderSpec) -> dict[str, Source]:
    """By transformers' names, and by those of the published checkpoints, which it writes. The last values of each head
    are rotated by pairs, which are the first ones here, by halves; so those of entries are in that order."""
    latent = spec.layers[0].attention.latent
    assert latent is not None
    rotated: dict[str, Any] = {"last_first": latent.rope_dim, "pairs": latent.rope_dim}
    fields = dict.fromkeys((*_ROTATED, *_COMPRESSOR, *_INDEXER), rotated)
    fields |= {leaf: {**rotated, "flat": True} for leaf in ("entry_bias", "index_bias")}
    fields = {leaf: each for leaf, each in fields.items() if leaf != "index_weights_proj"}
    made = named(
        spec,
        linears={**LLAMA_LINEARS, **_ROTATED, **_PLAIN, **_COMPRESSOR, **_INDEXER},
        norms=LLAMA_NORMS,
        fields=fields,
        experts=ExpertNames(shared=SHARED_EXPERTS),
    )
    made |= sinks(spec) | streams(spec, _STREAMS)
    return {ours: renamed(source, _names) for ours, source in made.items()}


_ROTATED = {"q_b_proj": "self_attn.q_b_proj", "kv_a_proj": "self_attn.kv_proj", "kv_a_norm": "self_attn.kv_norm"}
_PLAIN = {
    "q_a_proj": "self_attn.q_a_proj",
    "q_a_norm": "self_attn.q_a_norm",
    "o_a_proj": "self_attn.o_a_proj",
    "o_proj": "self_attn.o_b_proj",
}
_COMPRESSOR = {
    "entry_kv_proj": "self_attn.compressor.kv_proj",
    "entry_gate_proj": "self_attn.compressor.gate_proj",
    "entry_bias": "self_attn.compressor.position_bias",
    "entry_norm": "self_attn.compressor.kv_norm",
}
_INDEXER = {
    "index_q_proj": "self_attn.compressor.indexer.q_b_proj",
    "index_entry_kv_proj": "self_attn.compressor.indexer.kv_proj",
    "index_entry_gate_proj": "self_attn.compressor.indexer.gate_proj",
    "index_bias": "self_attn.compressor.indexer.position_bias",
    "index_k_norm": "self_attn.compressor.indexer.kv_norm",
    "index_weights_proj": "self_attn.compressor.indexer.scorer.weights_proj",
}
_STREAMS = {"attention_hc": ("attn_hc.{}",), "mlp_hc": ("ffn_hc.{}",), "head_hc": ("hc_head.hc_{}",)}
# Parts of transformers' names, and of those of the published checkpoints, in this order.
_PUBLISHED = {
    ".self_attn.compressor.indexer.scorer.": ".attn.indexer.",
    ".self_attn.compressor.indexer.q_b_proj": ".attn.indexer.wq_b",
    ".self_attn.compressor.indexer.": ".attn.indexer.compressor.",
    ".self_attn.": ".attn.",
    ".compressor.gate_proj": ".compressor.wgate",
    ".compressor.kv_norm": ".compressor.norm",
    **{".q_a_proj": ".wq_a", ".q_b_proj": ".wq_b", ".kv_proj": ".wkv", ".o_a_proj": ".wo_a", ".o_b_proj": ".wo_b"},
    **{".q_a_norm": ".q_norm", ".position_bias": ".ape", ".sinks": ".attn_sink"},
    **{".mlp.": ".ffn.", ".gate.e_score_correction_bias": ".gate.bias"},
    **{".input_layernorm": ".attn_norm", ".post_attention_layernorm": ".ffn_norm"},
    **{".attn_hc.": ".hc_attn_", ".ffn_hc.": ".hc_ffn_", "hc_head.hc_": "hc_head_"},
    **{"embed_tokens": "embed", "lm_head": "head"},
}
_EXPERTS = dict(zip(MLP, ("w1", "w3", "w2"), strict=True))


def _names(name: str) -> list[str]:
    """A tensor's name in a published checkpoint, as transformers writes it, and its own."""
    other = name
    for part, its_name in _PUBLISHED.items():
        other = other.replace(part, its_name, 1)
    for part, its_name in _EXPERTS.items() if "experts." in other else ():
        other = other.replace(f".{part}.", f".{its_name}.", 1)
    # transformers takes the norm of keys for the final one when it writes.
    written = other.replace(".attn.kv_norm.", ".attn.norm.")
    return [other.removeprefix("model."), other, written, name]
