"""The layers of Llama 4: which rotate queries and keys, which see a chunk, and which have experts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ipex_assist.models.common import FULL, activation, check_kinds, even_head_dim, experts
from ipex_assist.models.config import Config, NotComputed
from ipex_assist.models.layers import with_attention
from ipex_assist.models.mlp_spec import Experts
from ipex_assist.models.spec import LayerSpec

CHUNKED = "chunked_attention"


def with_positions(config: Config, layers: Sequence[LayerSpec]) -> tuple[LayerSpec, ...]:
    """These layers, each with the rotation, norm of heads, growth of queries and chunk that it has."""
    rotates = _rotates(config, len(layers))
    grows = config.number("attn_scale", 0.1) if config.flag("attn_temperature_tuning", True) else 0.0
    norm = "unweighted" if config.flag("use_qk_norm", True) else None
    fields: dict[str, Sequence[Any]] = {
        "rope": [0 if each else None for each in rotates],
        "qk_norm": [norm if each else None for each in rotates],
        "growth": [0.0 if each else grows for each in rotates],
        "chunk": _chunks(config, rotates),
    }
    for name, values in fields.items():
        layers = with_attention(layers, name, values)
    return tuple(layers)


def head_dim(config: Config) -> int:
    """128 where the config does not say it, and what divides the width where it says null."""
    null = "head_dim" in config.values and config.values["head_dim"] is None
    return even_head_dim(config) if null else config.integer("head_dim", 128)


def _rotates(config: Config, count: int) -> list[bool]:
    every = config.integer("no_rope_layer_interval", 4)
    given = config.optional_flags("no_rope_layers")
    return given or [every < 1 or (layer + 1) % every != 0 for layer in range(count)]


def _chunks(config: Config, rotates: list[bool]) -> list[int | None]:
    kinds = config.optional_texts("layer_types") or [CHUNKED if each else FULL for each in rotates]
    check_kinds(kinds, CHUNKED, FULL)
    given = "attention_chunk_size" in config.values
    size = config.optional_integer("attention_chunk_size") if given else 8192
    if size is None and CHUNKED in kinds:
        raise NotComputed("layers with chunks of attention, and a config that gives no attention_chunk_size")
    return [size if kind == CHUNKED else None for kind in kinds]


def sparse_layers(config: Config, count: int) -> list[bool]:
    """Which layers have experts."""
    step, given = config.integer("interleave_moe_layer_step", 1), config.values.get("moe_layers")
    if given is None:
        return [step > 0 and (layer + 1) % step == 0 for layer in range(count)]
    listed = config.integers("moe_layers")
    return [layer in listed for layer in range(count)]


def routed(config: Config) -> Experts:
    """A row's are those of its largest logits, whose sigmoids scale what they read."""
    act = activation(config.text("hidden_act", "silu"))
    size = config.integer("moe_intermediate_size", 8192)
    return experts(config, activation=act, normalised=False, scores="sigmoid", scales_inputs=True, shared_size=size)
