"""The structures that the C++ core and Python share, as ctypes: mirrors of packing/spec.h."""

from __future__ import annotations

import ctypes
from dataclasses import astuple

from ipex_assist.models.attention_spec import AttentionSpec
from ipex_assist.models.mixers import MIXERS
from ipex_assist.models.recurrent_spec import RecurrentSpec
from ipex_assist.models.spec import DecoderSpec, LayerSpec
from ipex_assist.models.stream_spec import StreamSpec
from ipex_assist.quantization.precision import FORMATS, beside_experts

ABI_VERSION = 48  # api.cpp: ia_abi. It changes with every function there and with the structures here.
PRECISIONS = {name: each.number for name, each in FORMATS.items()}
NORM_PLACES = {"pre": 0, "post_residual": 1, "post": 2, "sandwich": 3, "pre_and_mlp_out": 4}
HEAD_NORMS = {None: 0, "head": 1, "each_head": 2, "all_heads": 3, "unweighted": 4}
SCORES = {"softmax": 0, "sigmoid": 1, "sparsemixer": 2, "sqrt_softplus": 3}
ACTIVATIONS = {"silu": 0, "relu": 1, "gelu": 2, "gelu_tanh": 3, "relu2": 4, "xielu": 5, "clamped_swiglu": 6}
RECURRENT_KINDS = {name: number for number, name in enumerate(MIXERS, 1)}
SELECTION_NORMS = {None: 0, "unweighted": 1, "weighted": 2}
HEAD_KINDS = {"mtp": 1, "eagle3": 2, "dflash": 3, "shared_kv": 4}
INPUT_NORMS = {None: 0, "all": 1, "each": 2}
SOURCE_TYPES = {"float32": 0, "float16": 1, "bfloat16": 2}

_ATTENTION_INTEGERS = (
    "heads kv_heads head_dim v_head_dim window chunk rotary_dim rope_column paired_dim qk_norm norm_after_rope "
    "qkv_bias output_bias sinks output_gate gate_per_head gate_softplus growth_step growth_shift log_growth shares_kv "
    "kv_layer values_are_keys value_norm"
)
_LATENT_INTEGERS = "rank rope_dim nope_dim value_dim query_rank reads_unnormed"
_RECURRENT_INTEGERS = (
    "kind heads key_heads key_dim value_dim conv_kernel conv_bias input_bias output_bias norm_groups gate_rank "
    "selection_norm sigmoid_gate"
)
_MLP_INTEGERS = (
    "intermediate_size activation gated bias precision experts experts_per_token experts_normalised router_bias "
    "shared_size shared_gate scores correction_bias groups groups_per_token best_of_group identity scales_inputs "
    "expert_scales own_norms by_token"
)
_MLP_FLOATS = "scaling added_to_sum least_sum jitter limit shared_limit"
_LAYER_INTEGERS = "norm_place parallel shared_norm scaled beside defers mixer_gate_rank mlp_gate_rank laurel_rank"
_HEAD_INTEGERS = (
    "kind input_size taps input_norm norm_before_residual fed_back_normed lm_head_rows shared_embedding shared_head "
    "clusters clusters_read conv_kernel conv_group candidates selector_rank confidence_size"
)
_MODEL_INTEGERS = (
    "precision outer_precision group ordered layers vocab_size hidden_size embedding_size projected_embedding "
    "tied_head positions position_offset rope_width rms_norm norm_weight norm_bias final_norm embedding_norm head_bias "
    "per_layer_size per_layer_rows"
)


class CIndexerSpec(ctypes.Structure):
    """Mirrors `IndexerSpec` of spec.h."""

    _fields_ = [
        *((name, ctypes.c_int32) for name in ("top_k", "heads", "dim")),
        ("norm_eps", ctypes.c_float),
        *((name, ctypes.c_int32) for name in ("reads_input", "pool", "means")),
    ]


class CLatentSpec(ctypes.Structure):
    """Mirrors `LatentSpec` of spec.h, whose last part is a `CompressedSpec`."""

    _fields_ = [
        *((name, ctypes.c_int32) for name in _LATENT_INTEGERS.split()),
        ("norm_eps", ctypes.c_float),
        ("indexer", CIndexerSpec),
        *((name, ctypes.c_int32) for name in ("groups", "rate", "parts")),
    ]


class CBlockChoiceSpec(ctypes.Structure):
    """Mirrors `BlockChoiceSpec` of spec.h."""

    _fields_ = [(name, ctypes.c_int32) for name in ("blocks", "size", "local", "dim")]


class CAttentionSpec(ctypes.Structure):
    """Mirrors `AttentionSpec` of spec.h."""

    _fields_ = [
        *((name, ctypes.c_int32) for name in _ATTENTION_INTEGERS.split()),
        ("scale", ctypes.c_float),
        ("cap", ctypes.c_float),
        ("growth", ctypes.c_float),
        ("value_scale", ctypes.c_float),
        ("alibi_slopes", ctypes.POINTER(ctypes.c_float)),
        ("latent", CLatentSpec),
        ("choice", CBlockChoiceSpec),
    ]


class CRecurrentSpec(ctypes.Structure):
    """Mirrors `RecurrentSpec` of spec.h."""

    _fields_ = [
        *((name, ctypes.c_int32) for name in _RECURRENT_INTEGERS.split()),
        *((name, ctypes.c_float) for name in ["least_step", "most_step", "beta_scale", "norm_eps", "decay_bound"]),
    ]


class CMlpSpec(ctypes.Structure):
    """Mirrors `MlpSpec` of spec.h."""

    _fields_ = [
        *((name, ctypes.c_int32) for name in _MLP_INTEGERS.split()),
        *((name, ctypes.c_float) for name in _MLP_FLOATS.split()),
        *((name, ctypes.c_int32) for name in ("limits_gates", "sparse")),
        ("deviations", ctypes.c_float),
    ]


class CLayerSpec(ctypes.Structure):
    """Mirrors `LayerSpec` of spec.h."""

    _fields_ = [
        ("attention", CAttentionSpec),
        ("recurrent", CRecurrentSpec),
        ("mlp", CMlpSpec),
        *((name, ctypes.c_int32) for name in _LAYER_INTEGERS.split()),
        ("residual_multiplier", ctypes.c_float),
    ]


class CHeadSpec(ctypes.Structure):
    """Mirrors `HeadSpec` of spec.h."""

    _fields_ = [(name, ctypes.c_int32) for name in _HEAD_INTEGERS.split()]


class CStreamSpec(ctypes.Structure):
    """Mirrors `StreamSpec` of spec.h."""

    _fields_ = [
        *((name, ctypes.c_int32) for name in ("count", "sinkhorn_steps")),
        *((name, ctypes.c_float) for name in ("eps", "gain", "gain_eps")),
        *((name, ctypes.c_int32) for name in ("averaged", "gate_rank")),
    ]


class CAltUpSpec(ctypes.Structure):
    """Mirrors `AltUpSpec` of spec.h."""

    _fields_ = [(name, ctypes.c_int32) for name in ("count", "active", "scaled")]


class CModelSpec(ctypes.Structure):
    """Mirrors `ModelSpec` of spec.h."""

    _fields_ = [
        *((name, ctypes.c_int32) for name in _MODEL_INTEGERS.split()),
        ("norm_eps", ctypes.c_float),
        ("embedding_multiplier", ctypes.c_float),
        ("logit_cap", ctypes.c_float),
        ("draft_head", CHeadSpec),
        ("streams", CStreamSpec),
        ("altup", CAltUpSpec),
    ]


def model_spec(
    spec: DecoderSpec, precision: str, group: int, outer_precision: str | None = None, ordered: bool = False
) -> CModelSpec:
    """The whole of a DecoderSpec as the core reads it; `group` columns share an int4 scale.

    outer_precision: of the head and the embedding's projections, `precision` where None. ordered: linears have an order
    of input columns of their own.
    """
    beside = beside_experts(precision)
    return CModelSpec(
        precision=PRECISIONS[beside],
        outer_precision=PRECISIONS[outer_precision or beside],
        group=group,
        ordered=ordered,
        layers=spec.num_hidden_layers,
        vocab_size=spec.vocab_size,
        hidden_size=spec.hidden_size,
        embedding_size=spec.embedding_size or spec.hidden_size,
        projected_embedding=spec.projected_embedding,
        tied_head=spec.tied_head and spec.head is None,
        positions=spec.max_position_embeddings + spec.position_offset if spec.learned_positions else 0,
        position_offset=spec.position_offset,
        rope_width=spec.rotary_width,
        rms_norm=spec.norm == "rms",
        norm_weight=spec.norm_affine,
        norm_bias=spec.norms_biased,
        final_norm=spec.final_norm,
        embedding_norm=spec.embedding_norm,
        head_bias=spec.head_bias,
        per_layer_size=spec.per_layer_size,
        per_layer_rows=spec.per_layer_tokens if spec.per_layer_size else 0,
        norm_eps=spec.norm_eps,
        embedding_multiplier=spec.embedding_multiplier,
        logit_cap=spec.logit_cap or 0.0,
        draft_head=_head_spec(spec),
        streams=_stream_spec(spec.streams),
        altup=CAltUpSpec() if spec.altup is None else CAltUpSpec(*astuple(spec.altup)),
    )


def _stream_spec(streams: StreamSpec | None) -> CStreamSpec:
    return CStreamSpec(count=1) if streams is None else CStreamSpec(*astuple(streams))


def _head_spec(spec: DecoderSpec) -> CHeadSpec:
    head = spec.head
    if head is None:
        return CHeadSpec(lm_head_rows=spec.output_vocab_size or 0)
    return CHeadSpec(
        kind=HEAD_KINDS[head.kind],
        input_size=head.input_size,
        taps=len(head.taps.layers),
        input_norm=INPUT_NORMS[head.input_norm],
        norm_before_residual=head.norm_before_residual,
        fed_back_normed=head.fed_back_normed,
        lm_head_rows=head.draft_vocab_size or 0,
        shared_embedding=head.shared_embedding,
        shared_head=head.shared_head,
        clusters=head.clusters,
        clusters_read=head.clusters_read,
        conv_kernel=head.conv_kernel,
        conv_group=head.conv_group,
        candidates=head.candidates,
        selector_rank=head.selector_rank,
        confidence_size=head.confidence_size,
    )


def layer_specs(spec: DecoderSpec, precision: str) -> ctypes.Array[CLayerSpec]:
    """The layers of a DecoderSpec as the core reads them; precision: of the model, or of its experts."""
    known: dict[LayerSpec, CLayerSpec] = {}  # most are alike
    for layer in spec.layers:
        if layer not in known:
            known[layer] = _layer_spec(spec, layer, precision)
    return (CLayerSpec * len(spec.layers))(*(known[layer] for layer in spec.layers))


def _layer_spec(spec: DecoderSpec, layer: LayerSpec, precision: str) -> CLayerSpec:
    mixer = layer.mixer
    recurrent = isinstance(mixer, RecurrentSpec)
    return CLayerSpec(
        attention=CAttentionSpec() if recurrent else _attention_spec(spec, layer.attention),
        recurrent=_recurrent_spec(mixer) if isinstance(mixer, RecurrentSpec) else CRecurrentSpec(),
        mlp=_mlp_spec(layer, precision),
        norm_place=NORM_PLACES[layer.norm_place],
        parallel=layer.parallel,
        shared_norm=layer.shared_norm,
        scaled=layer.scaled,
        beside=layer.beside,
        defers=layer.defers,
        mixer_gate_rank=layer.mixer_gate_rank,
        mlp_gate_rank=layer.mlp_gate_rank,
        laurel_rank=layer.laurel_rank,
        residual_multiplier=layer.residual_multiplier,
    )


def _attention_spec(spec: DecoderSpec, attention: AttentionSpec) -> CAttentionSpec:
    columns = spec.rotary_columns(attention)
    made = CAttentionSpec(
        heads=attention.heads,
        kv_heads=attention.kv_heads,
        head_dim=attention.head_dim,
        v_head_dim=attention.value_dim or 0,
        window=attention.window or 0,
        chunk=attention.chunk or 0,
        rotary_dim=0 if columns is None else attention.rotary_size,
        rope_column=0 if columns is None else columns.start,
        paired_dim=attention.rotary_size if spec.ropes else 0,
        qk_norm=HEAD_NORMS[attention.qk_norm],
        norm_after_rope=attention.norm_after_rope,
        qkv_bias=attention.qkv_bias,
        output_bias=attention.output_bias,
        sinks=attention.sinks,
        output_gate=attention.output_gate,
        gate_per_head=attention.gate_per_head,
        gate_softplus=attention.gate_activation == "softplus",
        growth_step=attention.growth_step or 1,
        growth_shift=attention.growth_shift,
        log_growth=attention.log_growth,
        shares_kv=attention.shares_kv,
        kv_layer=attention.kv_layer or 0,
        values_are_keys=attention.values_are_keys,
        value_norm=attention.value_norm,
        scale=attention.score_scale,
        cap=attention.cap or 0.0,
        growth=attention.growth,
        value_scale=0.0 if attention.value_scale == 1 else attention.value_scale,
    )
    if (latent := attention.latent) is not None:
        sizes = (latent.rank, latent.rope_dim, latent.nope_dim, latent.value_dim, latent.query_rank or 0)
        made.latent = CLatentSpec(*sizes, latent.reads_unnormed, latent.norm_eps)
        made.latent.groups, made.latent.rate, made.latent.parts = latent.compressed
        if (indexer := latent.indexer) is not None:
            made.latent.indexer = CIndexerSpec(*astuple(indexer))
    if attention.indexer is not None:
        made.latent.indexer = CIndexerSpec(*astuple(attention.indexer))
    if (choice := attention.choice) is not None:
        made.choice = CBlockChoiceSpec(choice.blocks, choice.size, choice.local, choice.dim)
    if attention.alibi_slopes:
        made.alibi_slopes = (ctypes.c_float * attention.heads)(*attention.alibi_slopes)
    return made


def _recurrent_spec(spec: RecurrentSpec) -> CRecurrentSpec:
    return CRecurrentSpec(
        kind=RECURRENT_KINDS[spec.kind],
        heads=spec.heads,
        key_heads=spec.key_heads,
        key_dim=spec.key_dim,
        value_dim=spec.value_dim,
        conv_kernel=spec.conv_kernel,
        conv_bias=spec.conv_bias,
        input_bias=spec.input_bias,
        output_bias=spec.output_bias,
        norm_groups=spec.norm_groups,
        gate_rank=spec.gate_rank,
        selection_norm=SELECTION_NORMS[spec.selection_norm],
        sigmoid_gate=spec.sigmoid_gate,
        least_step=spec.step_limit[0],
        most_step=spec.step_limit[1],
        beta_scale=spec.beta_scale,
        norm_eps=spec.norm_eps or 0.0,
        decay_bound=spec.decay_bound or 0.0,
    )


def _mlp_spec(layer: LayerSpec, precision: str) -> CMlpSpec:
    if layer.mlp is None:
        return CMlpSpec(precision=PRECISIONS[beside_experts(precision)])
    each, experts = layer.each_mlp, layer.experts
    made = CMlpSpec(
        intermediate_size=each.intermediate_size,
        activation=ACTIVATIONS[each.activation],
        gated=each.gated,
        bias=each.bias,
        limit=each.limit or 0.0,
        limits_gates=each.limits_gates,
        sparse=each.sparsity > 0,
        deviations=each.deviations,
        precision=PRECISIONS[precision if experts is not None else beside_experts(precision)],
    )
    if experts is not None:
        made.experts, made.experts_per_token = experts.count, experts.per_token
        made.experts_normalised, made.router_bias = experts.normalised, experts.router_bias
        made.shared_size, made.shared_gate = experts.shared_size, experts.shared_gate
        made.scores, made.correction_bias = SCORES[experts.scores], experts.correction_bias
        made.groups, made.groups_per_token = experts.groups, experts.groups_per_token
        made.best_of_group, made.scaling, made.identity = experts.best_of_group, experts.scaling, experts.identity
        made.expert_scales, made.own_norms, made.by_token = experts.expert_scales, experts.own_norms, experts.by_token
        made.scales_inputs, made.shared_limit = experts.scales_inputs, experts.shared_limit or 0.0
        made.added_to_sum, made.least_sum, made.jitter = experts.added_to_sum, experts.least_sum, experts.jitter
    return made
