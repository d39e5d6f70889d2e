"""Qwen4, the text part: Qwen3.5-MoE with gated residuals, pools of positions that rows choose, and n-grams."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from ipex_assist.models import qwen3_5_text
from ipex_assist.models.choice_spec import IndexerSpec
from ipex_assist.models.common import FULL, experts, layer_count, refuse
from ipex_assist.models.config import Config, ConfigError, NotComputed
from ipex_assist.models.gated_delta import LINEAR, hybrid
from ipex_assist.models.mixers.ngrams import NORMS as NGRAM_NORMS
from ipex_assist.models.names import MIXER_GATE, MLP_GATE, STREAM_GATES
from ipex_assist.models.ngram_spec import NgramSpec
from ipex_assist.models.recurrent_spec import NGRAM_TABLE, RecurrentSpec
from ipex_assist.models.spec import DecoderSpec, LayerSpec
from ipex_assist.models.stream_spec import HEAD_GATE, StreamSpec
from ipex_assist.models.weights import Source

ARCHITECTURE = "Qwen4ExpForCausalLM"
EXAMPLES = ("Qwen/Qwen3.8-Flash-Next",)
NAMES = {"norm_eps": "rms_norm_eps"}
_INDEXED = ("indexed_attention", "qwen_sparse_attention")  # by transformers' name, and that of newer checkpoints
_PLACES = {"attention": "attn_hyper_connection", "mlp": "mlp_hyper_connection"}
_NORMS = {f"{ours}_norm": f"{theirs}.hc_norm" for ours, theirs in _PLACES.items()}
_INDEX_NORMS = {f"index_{part}_norm": f"self_attn.indexer.{part}_layernorm" for part in ("q", "k")}
_INDEXER_FIELDS = ("n_heads", "head_dim", "budget", "compress_ratio")
_NGRAM_NORMS = dict(zip(NGRAM_NORMS, ("norm_key", "norm_query", "norm_conv"), strict=True))
_ROWS = 16  # that convolutions read
_LANES = 16  # columns that are multiplied together
_KEPT = 256  # positions of a block of keys and values
_OUTSIDE = {"embed_tokens": "model.embed_tokens", "lm_head": "lm_head"} | {
    "final_norm": "model.hyper_connection_mixer.hc_norm",
    **{ours: f"model.hyper_connection_mixer.{theirs}" for ours, theirs in zip(HEAD_GATE, STREAM_GATES, strict=True)},
}
_LINEARS = {f"{ours}_hc": f"{theirs}.block_inject_weight" for ours, theirs in _PLACES.items()} | {
    ours: f"{place}.{theirs}"
    for gate, place in zip((MIXER_GATE, MLP_GATE), _PLACES.values(), strict=True)
    for ours, theirs in zip(gate, STREAM_GATES, strict=True)
}


def spec(config: Config) -> DecoderSpec:
    """Every layer has experts and a shared one that a sigmoid weights. Published configs say "full_attention"."""
    count = layer_count(config)
    every = config.integer("full_attention_interval", 4)
    usual = [LINEAR if every < 1 or (layer + 1) % every else FULL for layer in range(count)]
    kinds = [FULL if kind in _INDEXED else kind for kind in config.optional_texts("layer_types") or usual]
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
    return replace(made, layers=tuple(_with_ngrams(config, made, list(layers))), streams=streams)


def _with_ngrams(config: Config, made: DecoderSpec, layers: list[LayerSpec]) -> Iterator[LayerSpec]:
    """The layers, with embeddings of n-grams as layers of their own before those that `ple_layer_ids` counts from 1."""
    wanted = sorted(set(config.integers("ple_layer_ids")))
    for number, layer in enumerate(layers, 1):
        if number in wanted:
            yield LayerSpec(_ngrams(config, made, wanted.index(number)), None)
        yield layer
    if wanted and not 1 <= wanted[0] <= wanted[-1] <= len(layers):
        raise ConfigError("ple_layer_ids", wanted, f"numbers from 1 to {len(layers)}")


def _ngrams(config: Config, made: DecoderSpec, number: int) -> RecurrentSpec:
    """Raises NotComputed for more columns than rows have, and for more rows than sequences keep."""
    ends = config.values.get("eos_token_id")
    ends = ends[0] if isinstance(ends, list) and ends else ends
    if not isinstance(ends, int):
        raise ConfigError("eos_token_id", ends, "given: n-grams do not reach beyond it")
    given = config.values.get("ple_embed_dim")
    ngrams = NgramSpec(
        size=config.integer("ngram_size", 3),
        heads=config.integer("heads_per_ngram", 8),
        embed_dim=made.hidden_size if given is None else config.integer("ple_embed_dim"),
        kernel=config.integer("ple_conv_kernel_size", 4),
        vocab_size=made.vocab_size,
        end=ends,
        number=number,
        base=config.integer("ngram_vocab_size_base", 20_000_000),
        divisor=config.integer("make_ngram_vocab_size_divisible_by", 128),
        seed=config.integer("seed", 1234),
        parts=config.integer("split_ngram_parts", 512),
    )
    if ngrams.embed_dim > made.hidden_size or ngrams.kept > _ROWS or ngrams.rows >= 1 << 31:
        raise NotComputed(
            f"ple_embed_dim {ngrams.embed_dim} and convolutions over {ngrams.kept} tokens are not supported, only up "
            f"to hidden_size and {_ROWS}"
        )
    count = config.integer("hc_count", 4)
    return RecurrentSpec(
        *("ngram_rows", count, 1, 1, made.hidden_size, ngrams.kept), gate_rank=ngrams.embed_dim, hashes=ngrams
    )


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


def layer_after(config: Config, number: int) -> LayerSpec:
    """The layer that predicts further tokens, which has attention and no n-grams.

    Raises NotComputed for other layers, for several, and for one with a table or rotary positions of its own.
    """
    own = Config(config.part("mtp"))
    refuse(config, mtp_num_hidden_layers=1, mtp_use_dedicated_embeddings=False)
    refuse(own, num_hidden_layers=1)
    kinds, layer = own.optional_texts("layer_types") or [FULL], own.values.get("mtp_use_hidden_state_from_layer")
    if len(kinds) != 1 or kinds[0] not in (FULL, *_INDEXED) or layer is not None:
        raise NotComputed(f"layers that predict further tokens of {kinds} and of layer {layer} are not supported")
    alone = spec(config.but(num_hidden_layers=1, layer_types=[FULL], ple_layer_ids=[]))
    refuse(own, rope_theta=alone.ropes[0].theta)
    return alone.layers[0]


def weights(spec: DecoderSpec) -> dict[str, Source]:
    """Norms weight by 1 + w, but for those of recurrent layers."""
    index = next((each.indexer for each in spec.attentions if each.indexer is not None), IndexerSpec(1, means=True))
    queries = index.heads * index.dim
    rows = {"index_q_proj": {"rows": (0, queries)}, "index_k_proj": {"rows": (queries, queries + index.dim)}}
    linears = _LINEARS | dict.fromkeys(rows, "self_attn.indexer.index_qk_proj")
    shifted = {leaf: {"plus": 1.0} for leaf in _INDEX_NORMS}
    first = next((number for number, each in enumerate(spec.layers) if each.reads_streams), None)
    mixers = tuple(each for each in spec.layers if not each.reads_streams)
    made = qwen3_5_text.weights(
        replace(spec, layers=mixers),
        {**rows, **shifted},
        norms=_NORMS,
        linears=linears | _INDEX_NORMS,
        outside=_OUTSIDE,
    )
    return made if first is None else dict(_with_ngram_names(spec, made))


def _with_ngram_names(spec: DecoderSpec, made: dict[str, Source]) -> Iterator[tuple[str, Source]]:
    """Sources of a spec, of those of one without embeddings of n-grams, whose layers a checkpoint does not count."""
    yield from ((ours, source) for ours, source in made.items() if not ours.startswith("layers."))
    leaves: dict[str, list[tuple[str, Source]]] = {}
    for ours, source in made.items():
        if ours.startswith("layers."):
            _, number, leaf = ours.split(".", 2)
            leaves.setdefault(number, []).append((leaf, source))
    there = 0
    for here, layer in enumerate(spec.layers):
        if layer.recurrent is None or layer.recurrent.hashes is None:
            yield from ((f"layers.{here}.{leaf}", source) for leaf, source in leaves[str(there)])
            there += 1
            continue
        place = f"model.layers.{there}.ple."
        yield f"layers.{here}.v_conv.weight", Source(f"{place}conv1d.weight", flat=True)
        for leaf, name in _NGRAM_NORMS.items():
            yield f"layers.{here}.{leaf}.weight", Source(f"{place}{name}.weight", plus=1.0)
        for leaf, name in (("k_in", "key_proj"), ("v_in", "value_proj")):
            yield f"layers.{here}.{leaf}.weight", Source(f"{place}{name}.weight")
        table, first = f"{place}ple_embedding.ngram_embedding", 0
        for part, count in enumerate(layer.recurrent.hashes.stored_rows):
            whole = Source(f"{table}.weight", rows=(first, first + count))
            yield (
                f"layers.{here}.{NGRAM_TABLE}.{part}.rows.weight",
                Source(f"{table}.shard_{part}.weight", otherwise=whole),
            )
            first += count
