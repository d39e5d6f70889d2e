"""MiniMax-M3's text part: attention to blocks that rows choose for each KV head, and experts by sigmoid scores."""

from __future__ import annotations

from dataclasses import replace

from ipex_assist.models.choice_spec import BlockChoiceSpec
from ipex_assist.models.common import check_kinds, experts, layer_count, llama_like, rope, rotary_part, text_part
from ipex_assist.models.config import Config, ConfigError, NotComputed
from ipex_assist.models.layers import with_attention
from ipex_assist.models.mixtral import LINEARS, PLACE
from ipex_assist.models.mlp_spec import CLAMP, SIGMOID_GAIN
from ipex_assist.models.names import (
    HEAD_NORMS,
    LLAMA_LINEARS,
    LLAMA_NORMS,
    MLP,
    ExpertNames,
    also_named,
    inside,
    named,
    stacked,
)
from ipex_assist.models.spec import DecoderSpec, LayerSpec
from ipex_assist.models.weights import Source, weight_shape

ARCHITECTURE = "MiniMaxM3SparseForConditionalGeneration"
EXAMPLES = ("MiniMaxAI/MiniMax-M3",)
NAMES = {
    "norm_eps": "rms_norm_eps",
    "num_experts": "num_local_experts",
    "moe_intermediate_size": "intermediate_size",
}
_SPARSE = "minimax_m3_sparse"
_LANES = 16  # positions of a panel, of which blocks are whole ones
_KEPT = 256  # positions of a block of keys and values, of which they are even parts
_FIRST_NAMES = {  # in a part of published configs
    "index_n_heads": "sparse_num_index_heads",
    "index_head_dim": "sparse_index_dim",
    "index_block_size": "sparse_block_size",
    "index_topk_blocks": "sparse_topk_blocks",
    "index_local_blocks": "sparse_local_block",
}
_BIAS = "e_score_correction_bias"
_EXPERTS = ExpertNames(
    (f"{PLACE}.gate", "mlp.gate"),
    LINEARS,
    shared={leaf: f"{PLACE}.shared_experts.{leaf}" for leaf in MLP},
    correction_bias=(f"{PLACE}.{_BIAS}", f"mlp.{_BIAS}", f"mlp.gate.{_BIAS}"),
)
_INDEXER = {leaf: f"self_attn.{leaf}" for leaf in ("index_q_proj", "index_k_proj")}
_INDEXER_NORMS = {leaf: f"self_attn.{leaf}" for leaf in ("index_q_norm", "index_k_norm")}


def spec(config: Config) -> DecoderSpec:
    """That of the text part."""
    text = text_part(config)
    for name, value in (("swiglu_alpha", SIGMOID_GAIN), ("swiglu_limit", CLAMP)):
        if text.number(name, value) != value:
            raise NotComputed(f"{name} {text.number(name, value)} is not supported, only {value}")
    head_dim = text.integer("head_dim", 128)
    routed = experts(
        text,
        activation="clamped_swiglu",
        scores="sigmoid",
        correction_bias=True,
        normalised=True,
        scaling=text.number("routed_scaling_factor", 2.0),
        shared_size=text.integer("shared_intermediate_size", 3072),
    )
    made = llama_like(
        "minimax_m3_vl",
        text,
        head_dim=head_dim,
        ropes=(rope(text, 5000000.0, partial=True),),
        rotary_dim=rotary_part(text, head_dim, 1.0),
        qk_norm="head",
        intermediate_size=text.integer("dense_intermediate_size", 12288),
        activation="clamped_swiglu",
        experts=routed,
        sparse=_kinds(text, "mlp_layer_types", "moe_layer_freq", ("dense", "sparse"), usual=True),
    )
    own = text.part("sparse_attention_config")
    given = Config({**text.values, "sparse_attention_freq": own.get("sparse_attention_freq")})
    sparse = _kinds(given, "layer_types", "sparse_attention_freq", ("full_attention", _SPARSE), usual=False)
    choice = _choice(text, made.layers[0].attention.kv_heads) if any(sparse) else None
    return replace(made, layers=with_attention(made.layers, "choice", [choice if each else None for each in sparse]))


def layer_after(config: Config, number: int) -> LayerSpec:
    """With blocks that rows choose, and experts."""
    alone = {"num_hidden_layers": 1, "layer_types": [_SPARSE], "mlp_layer_types": ["sparse"]}
    return spec(text_part(config).but(**alone)).layers[0]


def _kinds(config: Config, listed: str, numbered: str, kinds: tuple[str, str], usual: bool) -> list[bool]:
    """Which layers are of the second kind: as they are listed by name, or by number, or `usual`."""
    count = layer_count(config)
    names = config.optional_texts(listed)
    if names is not None:
        check_kinds(names, *kinds)
        found = [name == kinds[1] for name in names]
    elif config.values.get(numbered) is not None:
        found = [bool(number) for number in config.integers(numbered)]
    else:
        found = [usual] * count
    if len(found) != count:
        raise ConfigError(listed, f"a list of {len(found)}", f"one for each of {count} layers")
    return found


def _choice(config: Config, kv_heads: int) -> BlockChoiceSpec:
    """Raises NotComputed for blocks that ours of keys and values are no multiple of, and for other heads."""
    first = Config(config.part("sparse_attention_config"))
    usual = {"index_n_heads": 4, "index_head_dim": 128, "index_block_size": 128, "index_topk_blocks": 16}
    numbers = {
        name: first.integer(_FIRST_NAMES[name]) if _FIRST_NAMES[name] in first.values else config.integer(name, value)
        for name, value in (usual | {"index_local_blocks": 1}).items()
    }
    if numbers["index_n_heads"] != kv_heads:
        raise NotComputed(f"index_n_heads {numbers['index_n_heads']} is not supported, only {kv_heads}, the KV heads")
    size, dim = numbers["index_block_size"], numbers["index_head_dim"]
    if size < max(_LANES, kv_heads) or _KEPT % size or dim % _LANES or not numbers["index_local_blocks"]:
        raise NotComputed(
            f"index_block_size {size}, index_head_dim {dim} and index_local_blocks {numbers['index_local_blocks']} are "
            f"not supported, only parts of {_KEPT} from {_LANES} on, multiples of {_LANES}, and at least 1"
        )
    return BlockChoiceSpec(numbers["index_topk_blocks"], size, numbers["index_local_blocks"], dim)


def weights(spec: DecoderSpec) -> dict[str, Source]:
    """Mixtral's names of experts; norms have their weights less 1. transformers has gate and up in one tensor."""
    norms = {**LLAMA_NORMS, **HEAD_NORMS, **_INDEXER_NORMS}
    sources = named(
        spec,
        linears={**LLAMA_LINEARS, **_INDEXER},
        norms=norms,
        fields={leaf: {"plus": 1.0} for leaf in (*norms, "final_norm")},
        experts=_EXPERTS,
    )
    sources = also_named(sources, {f"{PLACE}.shared_experts": "mlp.shared_experts"})
    sources = also_named(sources, {"self_attn.index_": "self_attn.indexer."})
    for ours, source in sources.items():
        leaf = next((leaf for leaf in ("gate_proj", "up_proj") if ours.endswith(f".{leaf}.weight")), None)
        if leaf is not None and ".experts." not in ours:
            size = weight_shape(spec, ours)[0]
            rows = stacked({"gate_proj": size, "up_proj": size})[leaf]
            together = Source(source.name.replace(leaf, "gate_up_proj"), **rows)
            sources[ours] = replace(source, otherwise=together)
    return inside(sources)
