"""What models with latent attention share (DeepSeek-V2's): how their configs and checkpoints name its parts."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from ipex_assist.models.attention_spec import LatentSpec
from ipex_assist.models.choice_spec import IndexerSpec
from ipex_assist.models.common import check_kinds, layer_count, llama_like, refuse, rope
from ipex_assist.models.config import Config, ConfigError, NotComputed
from ipex_assist.models.layers import with_attention
from ipex_assist.models.names import LLAMA_LINEARS, LLAMA_NORMS, SHARED_EXPERTS, ExpertNames, Fields, named
from ipex_assist.models.rope_spec import Rope
from ipex_assist.models.spec import DecoderSpec
from ipex_assist.models.weights import Source

# Ours that are of latent attention, by the checkpoint's names; queries are q_proj where they have no row of their own.
_LINEARS = {
    "q_a_proj": "q_a_proj",
    "q_nope_proj": "q_b_proj",
    "q_rope_proj": "q_b_proj",
    "k_rope_proj": "kv_a_proj_with_mqa",
    "kv_a_proj": "kv_a_proj_with_mqa",
    "k_b_proj": "kv_b_proj",
    "v_b_proj": "kv_b_proj",
    "index_q_proj": "indexer.wq_b",
    "index_k_proj": "indexer.wk",
    "index_weights_proj": "indexer.weights_proj",
    "index_gate_proj": "indexer.index_kpool_compress_gate",
    "index_places": "indexer.index_kpool_compress_ape",
}
_LANES = 16  # columns that the native core computes together
DEEPSEEK_EXPERTS = ExpertNames(shared=SHARED_EXPERTS)
LATENT_NORMS = {
    "q_a_norm": "self_attn.q_a_layernorm",
    "kv_a_norm": "self_attn.kv_a_layernorm",
    "index_k_norm": "self_attn.indexer.k_norm",
}


def latent_decoder(
    model_type: str,
    config: Config,
    sizes: dict[str, int],
    *,
    pairs: bool = True,
    positions: Rope | None = None,
    **differences: Any,
) -> DecoderSpec:
    """The spec of such a model. sizes: of a config without them. Raises NotComputed for other forms of attention.

    pairs: whether neighbouring values are rotated against each other. positions: where the config's are to be read
    otherwise. `attention_bias` puts a bias on what reads the layer's input, and on the output; not on a query that is
    direct.
    """
    latent = latent_spec(config, sizes)
    heads = config.integer("num_attention_heads")
    refuse(config, num_key_value_heads=heads, head_dim=latent.rope_dim, rope_interleave=pairs)
    positions = positions or rope(config)
    return with_latents(
        model_type, config, latent, attention_scale=_scale(latent, positions), ropes=(positions,), **differences
    )


def latent_spec(config: Config, sizes: dict[str, int]) -> LatentSpec:
    """The latents of a config. sizes: of a config without them. Raises NotComputed for widths that we do not have."""
    given = "q_lora_rank" in config.values
    query_rank = config.optional_integer("q_lora_rank") if given else sizes.get("q_lora_rank")
    latent = LatentSpec(
        rank=config.integer("kv_lora_rank", sizes["kv_lora_rank"]),
        rope_dim=config.integer("qk_rope_head_dim", sizes["qk_rope_head_dim"]),
        nope_dim=config.integer("qk_nope_head_dim", sizes["qk_nope_head_dim"]),
        value_dim=config.integer("v_head_dim", sizes["v_head_dim"]),
        query_rank=query_rank,
    )
    if sizes["qk_rope_head_dim"] and not latent.rope_dim:
        raise ConfigError("qk_rope_head_dim", 0, "at least 2")
    if any(size % _LANES for size in (latent.rank, latent.rope_dim, latent.value_dim)):
        raise NotComputed(
            f"kv_lora_rank {latent.rank}, qk_rope_head_dim {latent.rope_dim} and v_head_dim {latent.value_dim} are not "
            f"supported, only multiples of {_LANES}"
        )
    return latent


def with_latents(model_type: str, config: Config, latent: LatentSpec, **differences: Any) -> DecoderSpec:
    """The spec of a model that is Llama but for such latents and `differences`."""
    bias = config.flag("attention_bias", False)
    return llama_like(
        model_type,
        config,
        latent=latent,
        num_key_value_heads=1,
        head_dim=latent.head_dim,
        rotary_dim=latent.rope_dim or None,
        qkv_bias=bias,
        output_bias=bias,
        **differences,
    )


def with_indexers(
    spec: DecoderSpec,
    config: Config,
    shared: Sequence[bool],
    *,
    heads: int,
    norm_eps: float = 1e-6,
    reads_input: bool = False,
    pool: int = 1,
) -> DecoderSpec:
    """Such a model whose layers attend sparsely. heads: of the indexers of a config without their number.

    shared: which layers attend to what the last one before them that is not has chosen; False where all have an
    indexer. Raises ConfigError and NotComputed as `latent_spec` does.
    """
    sizes = (("index_topk", 2048), ("index_n_heads", heads), ("index_head_dim", 128))
    top_k, count, dim = (config.integer(name, usual) for name, usual in sizes)
    indexer = IndexerSpec(top_k, count, dim, norm_eps, reads_input, pool)
    if not indexer.heads:
        raise ConfigError("index_n_heads", 0, "at least 1")
    if indexer.dim % _LANES:
        raise NotComputed(f"index_head_dim {indexer.dim} is not supported, only multiples of {_LANES}")
    if shared and shared[0]:
        raise ConfigError("indexer_types", "shared in the first layer", "full there: it has nothing to share")
    if len(shared) != len(spec.layers):
        raise ConfigError("indexer_types", f"a list of {len(shared)}", f"one for each of {len(spec.layers)} layers")
    none, latents = IndexerSpec(indexer.top_k, pool=pool), []
    for layer, each in zip(spec.layers, shared, strict=True):
        assert layer.attention.latent is not None
        latents.append(replace(layer.attention.latent, indexer=none if each else indexer))
    return replace(spec, layers=with_attention(spec.layers, "latent", latents))


def indexer_kinds(config: Config) -> list[str]:
    """Which layers have an indexer: as they are listed, by a pattern of letters, or at equal distances from one on."""
    kinds = config.optional_texts("indexer_types")
    if kinds is None and "index_topk_pattern" in config.values:
        letters = {"F": "full", "S": "shared"}
        kinds = [letters.get(letter, letter) for letter in config.text("index_topk_pattern", "")]
    if kinds is None:
        each, first = max(config.integer("index_topk_freq", 1), 1), config.integer("index_skip_topk_offset", 2)
        kinds = ["full" if max(i - first + 1, 0) % each == 0 else "shared" for i in range(layer_count(config))]
    check_kinds(kinds, "full", "shared", what="indexers")
    if len(kinds) != layer_count(config):
        raise ConfigError("indexer_types", f"a list of {len(kinds)}", f"one for each of {layer_count(config)} layers")
    return kinds


def check_layer_types(config: Config) -> None:
    """Raise NotComputed where a config lists layers that do not attend sparsely."""
    check_kinds(config.optional_texts("layer_types") or [], "indexed_attention")


def _scale(latent: LatentSpec, positions: Rope) -> float:
    """Of scores: by the width of a head, and by the square of yarn's mscale for all dimensions."""
    scale = (latent.nope_dim + latent.rope_dim) ** -0.5
    weight, factor = positions.scaling.get("mscale_all_dim"), positions.scaling.get("factor", 1.0)
    if positions.kind == "default" or not weight or factor <= 1:
        return scale
    return scale * (0.1 * weight * math.log(factor) + 1) ** 2


def latent_weights(
    spec: DecoderSpec,
    pairs: bool = True,
    index_rotated: Mapping[str, Any] | None = None,
    norms: Mapping[str, str] | None = None,
    linears: Mapping[str, str] | None = None,
    experts: ExpertNames = DEEPSEEK_EXPERTS,
    fields: Fields | None = None,
    layer: int = 0,
) -> dict[str, Source]:
    """Their weights. Each head's rows of a query are those that are not rotated, then pairs that are (or halves); each
    head's rows of kv_b_proj are its keys', which are multiplied with queries and so transposed, then its values'.

    index_rotated: fields of sources, for an indexer's keys and queries, of which the first values are rotated by halves
    here. norms, linears, fields: further ones. layer: which one's widths all have.
    """
    latent = spec.layers[layer].attention.latent
    assert latent is not None
    usual, made = latent_parts(latent, {"pairs": latent.rope_dim} if pairs else {})
    if index_rotated:
        made |= {leaf: dict(index_rotated) for leaf in ("index_q_proj", "index_k_proj", "index_k_norm")}
    made["final_norm"] = {"factor": spec.logit_multiplier}
    return named(
        spec,
        linears={**LLAMA_LINEARS, **usual, **(linears or {})},
        norms={**LLAMA_NORMS, **LATENT_NORMS, **(norms or {})},
        fields={**made, **(fields or {})},
        experts=experts,
    )


def latent_parts(latent: LatentSpec, rotated: dict[str, Any]) -> tuple[dict[str, str], dict[str, dict[str, Any]]]:
    """Names of the linears, and fields of their sources. rotated: of those of what is rotated."""
    rank, rope_dim, nope, value = latent.rank, latent.rope_dim, latent.nope_dim, latent.value_dim
    query = {} if latent.query_rank else dict.fromkeys(("q_nope_proj", "q_rope_proj"), "q_proj")
    linears = {leaf: f"self_attn.{name}" for leaf, name in {**_LINEARS, **query}.items()}
    return linears, {
        "q_nope_proj": {"interleaved": (0, nope, nope + rope_dim)},
        "q_rope_proj": {"interleaved": (nope, nope + rope_dim, nope + rope_dim), **rotated},
        "k_rope_proj": {"rows": (rank, rank + rope_dim), **rotated},
        "kv_a_proj": {"rows": (0, rank)},
        "k_b_proj": {"interleaved": (0, nope, nope + value), "heads_transposed": nope},
        "v_b_proj": {"interleaved": (nope, nope + value, nope + value)},
        "index_places": {"flat": True},
    }
