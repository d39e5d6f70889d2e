"""The layers of Gemma 4: what differs between those that see everything and those that see a window."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from ipex_assist.models.common import FULL, SLIDING, rope
from ipex_assist.models.config import Config, ConfigError, NotComputed
from ipex_assist.models.mlp_spec import Experts, MlpSpec
from ipex_assist.models.rope_spec import Rope
from ipex_assist.models.spec import LayerSpec

# What a config without rope_parameters has.
_ROPES = {FULL: Rope(1e6, "proportional", {"partial_rotary_factor": 0.25, "factor": 1.0}), SLIDING: Rope()}


def rope_of(config: Config, kind: str) -> Rope:
    """Of layers of a kind."""
    parameters = config.part("rope_parameters")
    if parameters and not isinstance(parameters.get(kind), dict):
        raise NotComputed(f"rope_parameters without those of {kind} are not supported")
    return rope(config, kind=kind) if parameters else _ROPES[kind]


def gemma4_layers(config: Config, kinds: Sequence[str], layers: Sequence[LayerSpec]) -> tuple[LayerSpec, ...]:
    """These layers, each with the sizes of its attention, and with another one's keys and values or its own."""
    shared = config.integer("num_kv_shared_layers", 0)
    first = len(kinds) - shared
    owners = {kind: layer for layer, kind in enumerate(kinds[: max(0, first)])}
    if not 0 <= shared < len(kinds) or (shared and set(owners) != set(kinds)):
        raise ConfigError("num_kv_shared_layers", shared, "from 0 on, with layers of each type before these")
    same = config.flag("attention_k_eq_v", False)
    sizes = _attention_sizes(config, kinds, same)
    wide = 2 if config.flag("use_double_wide_mlp", False) else 1
    made: dict[Any, LayerSpec] = {}  # equal ones are one object
    for number, (kind, layer) in enumerate(zip(kinds, layers, strict=True)):
        own = number < first
        key = (kind, own, sizes[number])
        if key not in made:
            mixer = replace(
                layer.attention,
                kv_heads=sizes[number][0],
                head_dim=sizes[number][1],
                kv_layer=None if own else owners[kind],
                values_are_keys=own and same and kind == FULL,
                value_norm=own,
            )
            made[key] = replace(layer, mixer=mixer, mlp=_mlp(config, layer.each_mlp, 1 if own else wide), scaled=True)
    return tuple(made[kind, number < first, sizes[number]] for number, kind in enumerate(kinds))


def _attention_sizes(config: Config, kinds: Sequence[str], same: bool) -> list[tuple[int, int]]:
    """KV heads and head_dim of each layer. transformers 5.23 writes those that differ as `per_layer_config`."""
    usual = config.integer("num_key_value_heads"), config.integer("head_dim", 256)
    if "per_layer_config" in config.values:
        others = config.part("per_layer_config")
        found = [Config(Config(others).part(str(number))) for number in range(len(kinds))]
        if unknown := sorted({name for part in found for name in part.values} - {"head_dim", "num_key_value_heads"}):
            raise NotComputed(f"{unknown[0]} that differs by layer (per_layer_config) is not supported")
        if unknown := sorted(set(others) - {str(number) for number in range(len(kinds))}):
            raise ConfigError("per_layer_config", unknown[0], f"of layers from 0 to {len(kinds) - 1}")
        return [(part.integer("num_key_value_heads", usual[0]), part.integer("head_dim", usual[1])) for part in found]
    heads = config.optional_integer("num_global_key_value_heads") if same else None
    wide = usual[0] if heads is None else heads, config.integer("global_head_dim", 512)
    return [wide if kind == FULL else usual for kind in kinds]


def _mlp(config: Config, mlp: MlpSpec, wide: int) -> MlpSpec | Experts:
    size = mlp.intermediate_size * wide
    if not config.flag("enable_moe_block", False):
        return replace(mlp, intermediate_size=size)
    return Experts(
        config.integer("num_experts"),
        config.integer("top_k_experts"),
        config.integer("moe_intermediate_size"),
        mlp.activation,
        shared_size=size,
        expert_scales=True,
        own_norms=True,
    )
