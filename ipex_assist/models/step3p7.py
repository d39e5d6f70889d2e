"""Step 3.7 Flash: gated attention with windows in three of four layers, clamped experts, beside a vision model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from ipex_assist.models.common import (
    FULL,
    SLIDING,
    experts,
    layer_count,
    layer_kinds,
    llama_like,
    positive,
    refuse,
    ropes_by_kind,
    text_part,
    windows,
)
from ipex_assist.models.config import Config, ConfigError, NotComputed
from ipex_assist.models.layers import with_attention
from ipex_assist.models.mlp_spec import Experts, MlpSpec
from ipex_assist.models.names import HEAD_NORMS, LLAMA_LINEARS, LLAMA_NORMS, MLP, ExpertNames, inside, named
from ipex_assist.models.spec import DecoderSpec, LayerSpec
from ipex_assist.models.weights import Source

ARCHITECTURE = "Step3p7ForConditionalGeneration"
EXAMPLES = ("stepfun-ai/Step-3.7-Flash",)
NAMES = {"norm_eps": "rms_norm_eps", "num_experts": "n_routed_experts"}
_USUAL = {
    **{"vocab_size": 128815, "hidden_size": 4096, "intermediate_size": 11264, "num_hidden_layers": 45},
    **{"num_attention_heads": 64, "max_position_embeddings": 128000, "rms_norm_eps": 1e-5},
    **{"n_routed_experts": 288, "num_experts_per_tok": 8, "moe_intermediate_size": 1280},
}
# The maker's names of fields, and of tensors.
_FIELDS = {
    **{"num_attention_groups": "num_key_value_heads", "moe_num_experts": "n_routed_experts"},
    **{"num_local_experts": "n_routed_experts", "moe_top_k": "num_experts_per_tok"},
    **{"share_expert_dims": "share_expert_dim"},
}
_NORMS = {**LLAMA_NORMS, **HEAD_NORMS}
_LIMITS = ("swiglu_limits", "swiglu_limits_shared")


def spec(config: Config) -> DecoderSpec:
    """That of the text part. Entries of lists that go beyond the layers are those of layers that predict further."""
    text = text_part(config)
    given = {_FIELDS.get(name, name): value for name, value in text.values.items() if value is not None}
    text = Config({**_USUAL, **given}, config.other_names)
    refuse(text, hidden_act="silu", attention_bias=False, mlp_bias=False, gating=True)
    refuse(text, use_bidirectional_attention=False)
    count, head_dim = layer_count(text), text.integer("head_dim", 128)
    text = Config({**text.values, "layer_types": _trimmed(text.optional_texts("layer_types"), count)}, NAMES)
    kinds = layer_kinds(text, lambda layer: False)
    ropes = {kind: _rope(text, kinds, kind) for kind in (FULL, SLIDING)}
    alike = llama_like(
        "step3p7",
        text,
        num_key_value_heads=text.integer("num_key_value_heads", 8),
        head_dim=head_dim,
        qk_norm="head",
        attention_scale=positive(text, "query_pre_attn_scalar", head_dim) ** -0.5,
        output_gate=True,
        gate_per_head=True,
        **ropes_by_kind(ropes, kinds, head_dim),
        sliding_windows=windows(text, kinds),
    )
    return replace(alike, layers=_with_mlps(text, with_attention(alike.layers, "heads", _heads(text, kinds))))


def layer_after(config: Config, number: int) -> LayerSpec:
    """The layer that predicts further tokens with this number, from 0 on: of the kind that lists say beyond the layers,
    or lists of their own (`mtp_layer_types`); else dense, with attention to everything. It has as many heads as the
    last layer of its kind that has a number of its own (`per_layer_config`).
    """
    text = text_part(config).values
    count, own = layer_count(Config({**_USUAL, **text})), Config(text).part("per_layer_config")
    kinds = ["sparse" if sparse else "dense" for sparse in _sparse(Config(text), count)]
    made = {**text, "num_hidden_layers": count + number + 1, "mlp_layer_types": text.get("mlp_layer_types") or kinds}
    for name, usual in (("layer_types", FULL), ("mlp_layer_types", "dense"), *((name, None) for name in _LIMITS)):
        if isinstance(listed := made.get(name), list):
            made[name] = [*listed, *(text.get(f"mtp_{name}") or ()), *[usual] * (number + 1)]
    types = (made.get("layer_types") or [FULL] * (count + number + 1))[: count + number + 1]
    if alike := [each for each, kind in enumerate(types) if kind == types[-1] and str(each) in own]:
        made["per_layer_config"] = own | {str(count + number): own[str(alike[-1])]}
    return spec(config.but(text_config=made)).layers[-1]


def _trimmed(values: Any, count: int) -> Any:
    return values[:count] if values is not None else None


def _heads(text: Config, kinds: Sequence[str]) -> list[int]:
    """Layers with windows may have another number; a layer's own entry is what counts."""
    usual = text.integer("num_attention_heads")
    other = Config(text.part("attention_other_setting")).integer("num_attention_heads", usual)
    other = text.integer("num_sliding_attention_heads", other)
    own = Config(text.part("per_layer_config"))
    entries = [own.part(str(number)) for number in range(len(kinds))]
    if further := sorted({name for entry in entries for name in entry} - {"num_attention_heads"}):
        raise NotComputed(f"{further[0]} of its own in a layer (per_layer_config) is not supported")
    return [
        Config(entry).integer("num_attention_heads", usual if own.values or kind == FULL else other)
        for entry, kind in zip(entries, kinds, strict=True)
    ]


def _rope(text: Config, kinds: Sequence[str], kind: str) -> Config:
    """The positions of layers of a kind: its entry, or what the maker's lists say of the first such layer."""
    given = text.part("rope_parameters").get(kind)
    if given is not None:
        return Config({**text.values, "rope_parameters": given})
    first = kinds.index(kind) if kind in kinds else 0
    theta, listed = text.values.get("rope_theta", 10000.0), "partial_rotary_factors"
    rotated = text.numbers(listed) if text.values.get(listed) else ()
    made: dict[str, Any] = {"rope_type": "default", **(text.part("rope_scaling") if kind == FULL else {})}
    made["rope_theta"] = theta[first] if isinstance(theta, list) else theta
    made["partial_rotary_factor"] = rotated[first] if rotated else 1.0
    return Config({**text.values, "rope_parameters": made, "rope_theta": made["rope_theta"]})


def _with_mlps(text: Config, layers: Sequence[LayerSpec]) -> tuple[LayerSpec, ...]:
    """Each layer's MLP or experts, with the limit that it has of its own."""
    count = len(layers)
    limits, shared = (_limits(text, name, count) for name in _LIMITS)
    dense = layers[0].each_mlp
    routed = experts(
        text,
        scores="sigmoid",
        correction_bias=True,
        scaling=text.number("moe_router_scaling_factor", 1.0),
        shared_size=text.integer("share_expert_dim", 1280),
    )
    made: list[LayerSpec] = []
    for layer, sparse, limit, its_shared in zip(layers, _sparse(text, count), limits, shared, strict=True):
        mlp: MlpSpec | Experts = replace(dense, limit=its_shared)
        mlp = replace(routed, limit=limit, shared_limit=its_shared) if sparse else mlp
        made.append(replace(layer, mlp=mlp))
    return tuple(made)


def _sparse(text: Config, count: int) -> list[bool]:
    """Which layers have experts: as `mlp_layer_types` says, or `moe_layers_enum`; else all but the first three."""
    kinds = _trimmed(text.optional_texts("mlp_layer_types"), count)
    if kinds is not None and len(kinds) != count:
        raise ConfigError("mlp_layer_types", f"a list of {len(kinds)}", f"one for each of {count} layers")
    if kinds is not None:
        return [kind == "sparse" for kind in kinds]
    listed = text.values.get("moe_layers_enum")
    if isinstance(listed, str):
        listed = [int(each) for each in listed.split(",") if each.strip().isdigit()]
    numbers = range(3, count) if listed is None else Config({"moe_layers_enum": listed}).integers("moe_layers_enum")
    return [layer in numbers for layer in range(count)]


def _limits(text: Config, name: str, count: int) -> list[float | None]:
    """Of each layer; 0 is none."""
    given = text.values.get(name)
    if given is None:
        return [None] * count
    if not isinstance(given, list) or len(given) < count:
        raise ConfigError(name, given, f"a list of {count} numbers")
    return [Config({name: each}).optional_number(name) or None for each in given[:count]]


def weights(spec: DecoderSpec) -> dict[str, Source]:
    """Norms weight by 1 + w. All experts' matrices of a layer lie in three tensors, or transformers' two."""
    names = ExpertNames(
        router=("moe.gate", "mlp.gate"),
        linears={leaf: f"moe.{leaf}" for leaf in MLP},
        shared={leaf: f"share_expert.{leaf}" for leaf in MLP},
        correction_bias=("moe.router_bias", "mlp.gate.e_score_correction_bias"),
    )
    fields = {leaf: {"plus": 1.0} for leaf in (*_NORMS, "final_norm")}
    linears = {**LLAMA_LINEARS, "g_proj": "self_attn.g_proj"}
    sources = named(spec, linears=linears, norms=_NORMS, fields=fields, experts=names)
    return inside({ours: _together(spec, ours, source) for ours, source in sources.items()})


def _together(spec: DecoderSpec, ours: str, source: Source) -> Source:
    """An expert's matrix, or the shared one's, also by transformers' names."""
    if ".shared." in ours:
        others = tuple(
            name.replace("share_expert", "mlp.shared_experts") for name in (source.name, *source.alternatives)
        )
        return replace(source, alternatives=(*source.alternatives, *others))
    if source.expert is None:
        return source
    leaf, size = ours.split(".")[-2], spec.layers[int(ours.split(".")[1])].inner_size
    rows = {"gate_proj": (0, size), "up_proj": (size, 2 * size)}.get(leaf)
    place = source.name.split("moe.")[0] + "mlp.experts."
    name = place + ("down_proj" if rows is None else "gate_up_proj")
    apart = replace(source.otherwise, otherwise=None) if source.otherwise is not None else None
    together = Source(name, source.expert, rows=rows, otherwise=apart)
    return replace(source, alternatives=(), otherwise=together)
