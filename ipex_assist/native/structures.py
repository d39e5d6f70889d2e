"""The structures that the C++ core and Python share, as ctypes: the dataclasses of models/, as packing/spec.h has them.

A structure has the fields of its dataclass in their order, without those that the core has no use for (LEFT_OUT), and
behind them what is derived from others (DERIVED): a property of the dataclass, or what is given here.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from functools import cache
from typing import Any, Literal, NewType, get_args, get_origin, get_type_hints

from ipex_assist.models.attention_spec import AttentionSpec, LatentSpec
from ipex_assist.models.compressed_spec import CompressedSpec
from ipex_assist.models.draft_head import HeadSpec
from ipex_assist.models.mixers import MIXERS
from ipex_assist.models.mlp_spec import Experts, MlpSpec
from ipex_assist.models.ngram_spec import NgramSpec
from ipex_assist.models.recurrent_spec import RecurrentSpec
from ipex_assist.models.spec import DecoderSpec, LayerSpec
from ipex_assist.quantization.precision import FORMATS, beside_experts

PRECISIONS = {name: each.number for name, each in FORMATS.items()}
RECURRENT_KINDS = {name: number for number, name in enumerate(MIXERS, 1)}
SOURCE_TYPES = {"float32": 0, "float16": 1, "bfloat16": 2}

Wide = NewType("Wide", int)  # a whole number of 64 bits

# The core's name of a class, and of fields of experts, which are part of the MLP there.
NAMES: dict[type, str] = {DecoderSpec: "ModelSpec"}
_OF_EXPERTS = {"count": "experts", "per_token": "experts_per_token", "normalised": "experts_normalised"}

LEFT_OUT: dict[type, str] = {
    AttentionSpec: "rope indexer",
    LayerSpec: "mixer mlp",
    HeadSpec: "taps target_hidden_size draft_vocab_size block_size mask_token from_anchor",
    NgramSpec: "embed_dim vocab_size number base divisor seed parts",
    DecoderSpec: "model_type layers max_position_embeddings norm norm_bias ropes learned_positions logit_multiplier "
    "linear_multipliers embedding_layers whole_images output_vocab_size per_layer_vocab head",
}
DERIVED: dict[type, dict[str, Any]] = {
    LatentSpec: {"compressed": CompressedSpec},
    AttentionSpec: {"shares_kv": bool, "rope_column": int, "paired_dim": int},
    MlpSpec: {"deviations": float, "precision": int},
    NgramSpec: {"rows": int, "part_rows": int, "numbers": tuple[Wide, ...]},
    LayerSpec: {"attention": AttentionSpec, "recurrent": RecurrentSpec, "mlp": MlpSpec},
    HeadSpec: {"input_size": int, "taps": int, "lm_head_rows": int},
    DecoderSpec: {
        **dict.fromkeys(("precision", "outer_precision", "group"), int),
        **{"ordered": bool, "layers": int, "projected_embedding": bool, "positions": int, "rotary_width": int},
        **{
            "rms_norm": bool,
            "norms_biased": bool,
            "per_layer_tokens": int,
            "keeps_embedding": bool,
            "draft_head": HeadSpec,
        },
    },
}


def _hints(source: type) -> dict[str, Any]:
    """The fields of a dataclass and their types, without those of a dataclass that it is made of."""
    inherited = {each.name for base in source.__bases__ if is_dataclass(base) for each in fields(base)}
    hints = get_type_hints(source)
    return {each.name: hints[each.name] for each in fields(source) if each.name not in inherited}


@cache
def _members(source: type) -> dict[str, tuple[Any, Callable[[Any], Any]]]:
    """Of each field of a structure, its type there, and what makes a value of one that is not None."""
    left_out = LEFT_OUT.get(source, "").split()
    hints = {name: hint for name, hint in _hints(source).items() if name not in left_out} | DERIVED.get(source, {})
    if source is MlpSpec:
        hints |= {_OF_EXPERTS.get(name, name): hint for name, hint in _hints(Experts).items() if name not in hints}
    return {name: _member(name, hint) for name, hint in hints.items()}


def _member(name: str, hint: Any) -> tuple[Any, Callable[[Any], Any]]:
    """Names are their numbers: from 0 on, or from 1 on where 0 is None, or says that there is no structure at all."""
    first = int(name == "kind")
    if type(None) in get_args(hint):
        (hint,), first = (each for each in get_args(hint) if each is not type(None)), 1
    if get_origin(hint) is Literal:
        return ctypes.c_int32, {each: number for number, each in enumerate(get_args(hint), first)}.__getitem__
    if isinstance(hint, type) and is_dataclass(hint):
        return structure(hint), lambda value: value if isinstance(value, ctypes.Structure) else filled(hint, value)
    if get_origin(hint) is tuple:
        each, last = get_args(hint)[0], get_args(hint)[-1]
        (found, _), count = _member(name, each), len(get_args(hint))
        if last is Ellipsis:  # an address, null where it is empty
            return ctypes.POINTER(found), lambda value: (found * len(value))(*value) if value else None
        return found * count, lambda value: (found * count)(*value)
    if hint is str:
        return ctypes.c_int32, RECURRENT_KINDS.__getitem__
    plain = {bool: ctypes.c_int32, int: ctypes.c_int32, Wide: ctypes.c_int64, float: ctypes.c_float}
    return plain[hint], lambda value: value


@cache
def structure(source: type) -> type[ctypes.Structure]:
    """What the core has for a dataclass."""
    members = [(name, found) for name, (found, _) in _members(source).items()]
    return type(NAMES.get(source, source.__name__), (ctypes.Structure,), {"_fields_": members})


def filled(source: type, value: Any, **given: Any) -> ctypes.Structure:
    """A dataclass as the core has it, with what is given in some fields; None is 0, also in the place of all of it."""
    made = structure(source)()
    for name, (_, convert) in _members(source).items():
        found = given[name] if name in given else None if value is None else getattr(value, name)
        if found is not None:
            setattr(made, name, convert(found))
    return made


ModelStructure, LayerStructure = structure(DecoderSpec), structure(LayerSpec)


def model_spec(
    spec: DecoderSpec, precision: str, group: int, outer_precision: str | None = None, ordered: bool = False
) -> ctypes.Structure:
    """The whole of a DecoderSpec as the core reads it; `group` columns share an int4 scale.

    outer_precision: of the head and the embedding's projections, `precision` where None. ordered: linears have an order
    of input columns of their own.
    """
    beside, head = beside_experts(precision), spec.head
    taps = 0 if head is None else len(head.taps.layers)
    rows = spec.output_vocab_size if head is None else head.draft_vocab_size
    return filled(
        DecoderSpec,
        spec,
        precision=PRECISIONS[beside],
        outer_precision=PRECISIONS[outer_precision or beside],
        group=group,
        ordered=ordered,
        layers=spec.num_hidden_layers,
        embedding_size=spec.embedding_size or spec.hidden_size,
        tied_head=spec.tied_head and head is None,
        positions=spec.max_position_embeddings + spec.position_offset if spec.learned_positions else 0,
        rms_norm=spec.norm == "rms",
        per_layer_tokens=spec.per_layer_tokens if spec.per_layer_size else 0,
        draft_head=filled(HeadSpec, head, taps=taps, lm_head_rows=rows),
    )


def layer_specs(spec: DecoderSpec, precision: str) -> ctypes.Array[Any]:
    """The layers of a DecoderSpec as the core reads them; precision: of the model, or of its experts."""
    known: dict[LayerSpec, ctypes.Structure] = {}  # most are alike
    for layer in spec.layers:
        if layer not in known:
            mixer = layer.mixer
            known[layer] = filled(
                LayerSpec,
                layer,
                attention=_attention(spec, mixer if isinstance(mixer, AttentionSpec) else None),
                recurrent=filled(RecurrentSpec, layer.recurrent),
                mlp=_mlp(layer, precision),
            )
    return (LayerStructure * len(spec.layers))(*(known[layer] for layer in spec.layers))


def _attention(spec: DecoderSpec, attention: AttentionSpec | None) -> ctypes.Structure:
    if attention is None:
        return filled(AttentionSpec, None)
    columns, latent = spec.rotary_columns(attention), attention.latent
    entries = latent if isinstance(latent, CompressedSpec) else None
    indexer = attention.indexer if latent is None else latent.indexer  # of heads, too, it is the latent's there
    return filled(
        AttentionSpec,
        attention,
        rotary_dim=0 if columns is None else attention.rotary_size,
        rope_column=0 if columns is None else columns.start,
        paired_dim=attention.rotary_size if spec.ropes else 0,
        scale=attention.score_scale,
        latent=filled(LatentSpec, latent, indexer=indexer, compressed=filled(CompressedSpec, entries)),
    )


def _mlp(layer: LayerSpec, precision: str) -> ctypes.Structure:
    experts, each = layer.experts, None if layer.mlp is None else layer.each_mlp
    own = _hints(Experts).keys() - _hints(MlpSpec).keys()
    given = {_OF_EXPERTS.get(name, name): None if experts is None else getattr(experts, name) for name in own}
    number = PRECISIONS[beside_experts(precision) if experts is None else precision]
    return filled(MlpSpec, each, **given, precision=number)
