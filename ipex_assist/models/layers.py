"""Decoders whose layers are alike: what a layer has is said once; windows, ropes and experts may differ by layer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any

from ipex_assist.models.attention_spec import AttentionSpec
from ipex_assist.models.config import ConfigError
from ipex_assist.models.mlp_spec import Experts, MlpSpec
from ipex_assist.models.ranges import check_range
from ipex_assist.models.recurrent_spec import RecurrentSpec
from ipex_assist.models.rope_spec import Rope
from ipex_assist.models.spec import RANGES, DecoderSpec, LayerSpec

# What a layer's parts call the fields that `uniform_decoder` takes flat.
_ATTENTION = {
    **{each.name: each.name for each in fields(AttentionSpec)},
    "num_attention_heads": "heads",
    "num_key_value_heads": "kv_heads",
    "attention_value_scale": "value_scale",
    "alibi": "alibi_slopes",
    "attention_sinks": "sinks",
    "attention_scale": "scale",
    "attention_cap": "cap",
    "query_growth": "growth",
    "query_growth_step": "growth_step",
    "query_growth_shift": "growth_shift",
}
_MLP = {
    "intermediate_size": "intermediate_size",
    "activation": "activation",
    "gated": "gated",
    "mlp_bias": "bias",
}
_LAYER = {name: name for name in ("norm_place", "parallel", "shared_norm", "residual_multiplier")}


def uniform_decoder(
    *,
    num_hidden_layers: int,
    experts: Experts | None = None,
    sparse: Sequence[bool] = (),
    ropes: Sequence[Rope] = (),
    layer_ropes: Sequence[int | None] = (),
    rotary_dims: Sequence[int] = (),
    sliding_windows: Sequence[int | None] = (),
    **given: Any,
) -> DecoderSpec:
    """A DecoderSpec of `num_hidden_layers` equal layers.

    given: of the DecoderSpec, and by the names above those of a layer. experts: in place of an MLP, of every layer, or
    of those where `sparse` says so. layer_ropes, rotary_dims, sliding_windows: of each layer; empty where all have the
    first rope, rotate as much of a head, and see everything. Raises ConfigError as the parts do, and for a list that
    has not one entry a layer.
    """
    check_range("num_hidden_layers", num_hidden_layers, RANGES["num_hidden_layers"])
    attention = AttentionSpec(**_taken(given, _ATTENTION), rope=0 if ropes else None)
    mlp, others = _taken(given, _MLP), _taken(given, _LAYER)
    layers: Sequence[LayerSpec]
    if experts is None:
        layers = repeated(LayerSpec(attention, MlpSpec(**mlp), **others), num_hidden_layers)
    else:
        layers = repeated(LayerSpec(attention, experts, **others), num_hidden_layers)
        dense = layers[0] if all(sparse) else LayerSpec(attention, MlpSpec(**mlp), **others)
        layers = [layer if here else dense for layer, here in zip(layers, sparse or layers, strict=True)]
    for name, each in (("rope", layer_ropes), ("rotary_dim", rotary_dims), ("window", sliding_windows)):
        layers = with_attention(layers, name, each) if each else layers
    return DecoderSpec(layers=tuple(layers), ropes=tuple(ropes), **given)


def repeated(layer: LayerSpec, count: int) -> tuple[LayerSpec, ...]:
    """So many equal layers."""
    return (layer,) * count


def with_attention(layers: Sequence[LayerSpec], name: str, values: Sequence[Any]) -> tuple[LayerSpec, ...]:
    """The layers with another value in one field of their attention, each its own. Raises ConfigError."""
    if len(values) != len(layers):
        raise ConfigError("layer_types", f"a list of {len(values)}", f"one for each of {len(layers)} layers")
    made: dict[tuple[LayerSpec, Any], LayerSpec] = {}  # equal ones are one object
    for layer, value in zip(layers, values, strict=True):
        if (layer, value) not in made:
            made[layer, value] = replace(layer, mixer=replace(layer.attention, **{name: value}))
    return tuple(made[each] for each in zip(layers, values, strict=True))


def with_mixers(spec: DecoderSpec, mixers: Sequence[RecurrentSpec | None]) -> DecoderSpec:
    """The decoder with other mixers in the layers that have one in the list. Raises ConfigError."""
    if len(mixers) != spec.num_hidden_layers:
        count = spec.num_hidden_layers
        raise ConfigError("layer_types", f"a list of {len(mixers)}", f"one for each of {count} layers")
    made: dict[tuple[LayerSpec, RecurrentSpec | None], LayerSpec] = {}  # equal ones are one object
    for layer, mixer in zip(spec.layers, mixers, strict=True):
        if (layer, mixer) not in made:
            made[layer, mixer] = layer if mixer is None else replace(layer, mixer=mixer)
    return replace(spec, layers=tuple(made[each] for each in zip(spec.layers, mixers, strict=True)))


def _taken(given: dict[str, Any], names: dict[str, str]) -> dict[str, Any]:
    """Take those of these names out of `given`, by what a part calls them."""
    return {ours: given.pop(name) for name, ours in names.items() if name in given}
