"""The structures that the C++ core and Python share, as ctypes: mirrors of packing/model.h and operations/batch.h."""

from __future__ import annotations

import ctypes

from ipex_assist.models.spec import DecoderSpec, Experts
from ipex_assist.quantization.precision import beside_experts

ABI_VERSION = 8  # api.cpp: ia_abi. It changes with every function there and with the structures here.
PRECISIONS = {"fp32": 0, "bf16": 1, "int8": 2, "int4": 3, "mxfp4": 4}
NORM_PLACES = {"pre": 0, "post_residual": 1, "post": 2, "sandwich": 3}
HEAD_NORMS = {None: 0, "head": 1, "each_head": 2, "all_heads": 3}
ACTIVATIONS = {"silu": 0, "relu": 1, "gelu": 2, "gelu_tanh": 3, "clamped_swiglu": 4}
SOURCE_TYPES = {"float32": 0, "float16": 1, "bfloat16": 2}
# Our weight names' last part but one (models/weights.py) by their number.
SLOTS = {
    name: number
    for number, name in enumerate(
        (
            "embed_tokens",
            "embed_positions",
            "project_in",
            "project_out",
            "lm_head",
            "final_norm",
            "embed_norm",
            "attention_norm",
            "attention_out_norm",
            "mlp_norm",
            "mlp_out_norm",
            "q_norm",
            "k_norm",
            "sinks",
            "q_proj",
            "k_proj",
            "v_proj",
            "o_proj",
            "gate_proj",
            "up_proj",
            "down_proj",
            "router",
            "shared_gate",
        )
    )
}

_INTEGERS = (
    "precision group vocab_size hidden_size intermediate_size layers heads kv_heads head_dim positions position_offset "
    "embedding_size rms_norm norm_weight norm_bias norm_place final_norm activation gated qkv_bias output_bias "
    "mlp_bias qk_norm tied_head projected_embedding"
)
_LATER_INTEGERS = "ordered parallel shared_norm embedding_norm head_bias attention_sinks rotary_dim rotary_tables"
_EXPERTS = "experts experts_per_token experts_normalised router_bias shared_size shared_gate expert_precision"
_FACTORS = "embedding_multiplier residual_multiplier attention_cap logit_cap"


class Spec(ctypes.Structure):
    """Mirrors `Spec` of model.h."""

    _fields_ = [
        *((name, ctypes.c_int32) for name in _INTEGERS.split()),
        ("norm_eps", ctypes.c_float),
        ("attention_scale", ctypes.c_float),
        ("outer_precision", ctypes.c_int32),
        *((name, ctypes.c_int32) for name in _LATER_INTEGERS.split()),
        *((name, ctypes.c_float) for name in _FACTORS.split()),
        *((name, ctypes.c_int32) for name in _EXPERTS.split()),
    ]


class Segment(ctypes.Structure):
    """Mirrors `Segment` of batch.h: the rows of one sequence in a pass."""

    _fields_ = [
        ("blocks", ctypes.c_void_p),
        ("block_count", ctypes.c_int32),
        ("start", ctypes.c_int32),
        ("rows", ctypes.c_int32),
        ("rope_start", ctypes.c_int32),
        ("rope_rows", ctypes.c_int32),
        ("cosine", ctypes.c_void_p),
        ("sine", ctypes.c_void_p),
    ]


class Batch(ctypes.Structure):
    """Mirrors `Batch` of batch.h."""

    _fields_ = [
        ("segment_count", ctypes.c_int32),
        ("rows", ctypes.c_int32),
        ("segments", ctypes.POINTER(Segment)),
        ("tokens", ctypes.POINTER(ctypes.c_int32)),
        ("blocks", ctypes.c_void_p),
        ("logit_rows", ctypes.POINTER(ctypes.c_int32)),
        ("logit_row_count", ctypes.c_int32),
        ("vocabulary", ctypes.c_int32),
        ("logits", ctypes.c_void_p),
        ("stride", ctypes.c_int64),
        ("threads", ctypes.c_int32),
    ]


class GreedyDraft(ctypes.Structure):
    """Mirrors `GreedyDraft` of batch.h."""

    _fields_ = [
        ("counts", ctypes.POINTER(ctypes.c_int32)),
        ("min_probability", ctypes.POINTER(ctypes.c_float)),
        ("stride", ctypes.c_int64),
        ("tokens", ctypes.POINTER(ctypes.c_int32)),
        ("probabilities", ctypes.POINTER(ctypes.c_float)),
        ("drafted", ctypes.POINTER(ctypes.c_int32)),
    ]


class TopTokens(ctypes.Structure):
    """Mirrors `TopTokens` of batch.h."""

    _fields_ = [
        ("top", ctypes.c_int32),
        ("tokens", ctypes.POINTER(ctypes.c_int32)),
        ("logs", ctypes.POINTER(ctypes.c_float)),
        ("log_sums", ctypes.POINTER(ctypes.c_float)),
        ("top_tokens", ctypes.POINTER(ctypes.c_int32)),
        ("top_logs", ctypes.POINTER(ctypes.c_float)),
    ]


def native_spec(
    spec: DecoderSpec, precision: str, group: int, outer_precision: str | None = None, ordered: bool = False
) -> Spec:
    """A DecoderSpec as the core reads it; `group` columns share an int4 scale.

    outer_precision: of the head and the embedding's projections, `precision` where None. ordered: linears have an order
    of input columns of their own.
    """
    beside = beside_experts(precision)
    layer = spec.layers[0]
    attention, mlp = layer.attention, layer.each_mlp
    return Spec(
        precision=PRECISIONS[beside],
        group=group,
        vocab_size=spec.vocab_size,
        hidden_size=spec.hidden_size,
        intermediate_size=mlp.intermediate_size,
        layers=spec.num_hidden_layers,
        heads=attention.heads,
        kv_heads=attention.kv_heads,
        head_dim=attention.head_dim,
        positions=spec.max_position_embeddings + spec.position_offset if spec.learned_positions else 0,
        position_offset=spec.position_offset,
        embedding_size=spec.embedding_size or spec.hidden_size,
        rms_norm=spec.norm == "rms",
        norm_weight=spec.norm_affine,
        norm_bias=spec.norms_biased,
        norm_place=NORM_PLACES[layer.norm_place],
        final_norm=spec.final_norm,
        activation=ACTIVATIONS[mlp.activation],
        gated=mlp.gated,
        qkv_bias=attention.qkv_bias,
        output_bias=attention.output_bias,
        mlp_bias=mlp.bias,
        qk_norm=HEAD_NORMS[attention.qk_norm],
        tied_head=spec.tied_head,
        projected_embedding=spec.projected_embedding,
        norm_eps=spec.norm_eps,
        attention_scale=attention.score_scale,
        outer_precision=PRECISIONS[outer_precision or beside],
        ordered=ordered,
        parallel=layer.parallel,
        shared_norm=layer.shared_norm,
        embedding_norm=spec.embedding_norm,
        head_bias=spec.head_bias,
        attention_sinks=attention.sinks,
        rotary_dim=attention.rotary_size if spec.rotary_tables else 0,
        rotary_tables=len(spec.rotary_tables),
        embedding_multiplier=spec.embedding_multiplier,
        residual_multiplier=layer.residual_multiplier,
        attention_cap=attention.cap or 0.0,
        logit_cap=spec.logit_cap or 0.0,
        **_experts(layer.experts, precision),
    )


def _experts(experts: Experts | None, precision: str) -> dict[str, int]:
    if experts is None:
        return {}
    return {
        "experts": experts.count,
        "experts_per_token": experts.per_token,
        "experts_normalised": experts.normalised,
        "router_bias": experts.router_bias,
        "shared_size": experts.shared_size,
        "shared_gate": experts.shared_gate,
        "expert_precision": PRECISIONS[precision],
    }


def place_of(spec: DecoderSpec, name: str) -> tuple[int, int]:
    """Where the core has one of our weights: its slot, and the index of its layer or expert (`Model::pack`)."""
    *prefix, leaf, _kind = name.split(".")
    if not prefix:
        return SLOTS[leaf], 0
    layer = int(prefix[1])
    experts = spec.layers[layer].experts
    if len(prefix) == 2 or experts is None:
        return SLOTS[leaf], layer
    number = experts.count if prefix[2] == "shared" else int(prefix[3])
    return SLOTS[leaf], layer + spec.num_hidden_layers * (number + 1)
