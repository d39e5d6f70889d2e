"""Gemma 3n, the text part: residual streams that layers predict and correct, sparse gates, embeddings of each layer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from ipex_assist.models.common import (
    FULL,
    SLIDING,
    activation,
    layer_count,
    layer_kinds,
    llama_like,
    number_or_none,
    rope,
    windows,
)
from ipex_assist.models.config import Config, ConfigError, NotComputed
from ipex_assist.models.gemma2 import NORM_NAMES
from ipex_assist.models.gemma3_text import local_rope
from ipex_assist.models.gemma4_text import PER_LAYER_LINEARS, PER_LAYER_NAMES
from ipex_assist.models.names import LLAMA_LINEARS, LLAMA_OUTSIDE, also_named, inside, named
from ipex_assist.models.spec import DecoderSpec, LayerSpec
from ipex_assist.models.stream_spec import ALTUP_PROJECTIONS, AltUpSpec
from ipex_assist.models.weights import Source

ARCHITECTURE = "Gemma3nForCausalLM"
EXAMPLES = ("google/gemma-3n-E4B-it", "google/gemma-3n-E2B-it")
NAMES = {
    **{"norm_eps": "rms_norm_eps", "kv_layer": "num_kv_shared_layers", "per_layer_size": "hidden_size_per_layer_input"},
    "per_layer_vocab": "vocab_size_per_layer_input",
}
_LINEARS = {"laurel_left_proj": "laurel.linear_left", "laurel_right_proj": "laurel.linear_right"}
_NORMS = {
    **{"per_layer_out_norm": "post_per_layer_input_norm", "laurel_out_norm": "laurel.post_laurel_norm"},
    **{"altup_router_norm": "altup.router_norm", "altup_router": "altup.modality_router"},
    **{"altup_predict": "altup.prediction_coefs", "altup_correct": "altup.correction_coefs"},
}
_SCALE = {"altup_scale": "altup.correct_output_scale"}


def spec(config: Config) -> DecoderSpec:
    """Layers may differ in the width of their MLP, and in the share of its gates that are 0."""
    kinds = layer_kinds(config, lambda layer: (layer + 1) % 5 != 0)
    bias = config.flag("attention_bias", False)
    per_layer = config.integer("per_layer_size", 256)
    if not per_layer:
        raise NotComputed("Gemma 3n without per-layer embeddings is not supported")
    widths = _of_layers(config, "intermediate_size", 16384)
    made = llama_like(
        "gemma3n_text",
        config,
        num_key_value_heads=config.integer("num_key_value_heads", 2),
        head_dim=config.integer("head_dim", 256),
        intermediate_size=widths[0],
        activation=activation(config.text("hidden_activation", "gelu_pytorch_tanh")),
        **{"norm_place": "sandwich", "qk_norm": "head", "attention_scale": 1.0, "qkv_bias": bias, "output_bias": bias},
        max_position_embeddings=config.integer("max_position_embeddings", 32768),
        ropes=(rope(config, 1e6, kind=FULL), local_rope(config)),
        layer_ropes=tuple(int(kind == SLIDING) for kind in kinds),
        sliding_windows=windows(config, kinds, 512),
        embedding_multiplier=config.integer("hidden_size") ** 0.5,
        logit_cap=number_or_none(config, "final_logit_softcapping", 30.0),
        tied_head=config.flag("tie_word_embeddings", True),
        per_layer_size=per_layer,
        per_layer_vocab=config.integer("per_layer_vocab", 262144),
        altup=_altup(config),
    )
    return replace(made, layers=_layers(config, kinds, made.layers, widths))


def _altup(config: Config) -> AltUpSpec:
    count = config.integer("altup_num_inputs", 4)
    if count == 1:
        raise NotComputed("altup_num_inputs 1 is not supported, only several streams")
    return AltUpSpec(count, config.integer("altup_active_idx", 0), config.flag("altup_correct_scale", True))


def _of_layers(config: Config, name: str, usual: int) -> tuple[int, ...]:
    """A whole number for each layer, which may be one for all of them."""
    count = layer_count(config)
    if not isinstance(config.values.get(name), list):
        return (config.integer(name, usual),) * max(count, 1)
    found = config.integers(name)
    if len(found) != count or not found:
        raise ConfigError(name, f"a list of {len(found)}", f"one for each of {count} layers, or one for all")
    return tuple(found)


def _sparsity(config: Config, count: int) -> tuple[float, ...]:
    if config.values.get("activation_sparsity_pattern") is None:
        sparse = 10 if count > 10 else 0
        return (0.95,) * sparse + (0.0,) * (count - sparse)
    found = config.numbers("activation_sparsity_pattern")
    if len(found) != count:
        raise ConfigError("activation_sparsity_pattern", f"a list of {len(found)}", f"one for each of {count} layers")
    return found


def _layers(
    config: Config, kinds: Sequence[str], layers: Sequence[LayerSpec], widths: Sequence[int]
) -> tuple[LayerSpec, ...]:
    """The layers with keys and values of their own, or those of the last before of their type that has some."""
    shared = config.integer("kv_layer", 15)
    first = len(kinds) - shared
    owners = {kind: layer for layer, kind in enumerate(kinds[: max(0, first)])}
    if not 0 <= shared < len(kinds) or (shared and set(owners) != set(kinds)):
        raise ConfigError("kv_layer", shared, "from 0 on, with layers of each type before these")
    rank, sparsity = config.integer("laurel_rank", 64), _sparsity(config, len(kinds))
    if rank < 1:
        raise ConfigError("laurel_rank", rank, "1 at least")
    made: dict[Any, LayerSpec] = {}  # equal ones are one object
    own = [number < first for number in range(len(kinds))]
    keys = list(zip(kinds, own, widths, sparsity, strict=True))
    for key, layer in zip(keys, layers, strict=True):
        kind, keeps, width, share = key
        if key not in made:
            mixer = replace(layer.attention, kv_layer=None if keeps else owners[kind], value_norm=keeps)
            mlp = replace(layer.each_mlp, intermediate_size=width, sparsity=share)
            made[key] = replace(layer, mixer=mixer, mlp=mlp, laurel_rank=rank)
    return tuple(made[key] for key in keys)


def weights(spec: DecoderSpec) -> dict[str, Source]:
    """The router reads a norm ÷ hidden_size, which is folded into that. transformers 4 saves other names."""
    assert spec.altup is not None
    flat = {leaf: {"flat": True} for leaf in ("altup_router", "altup_predict", "altup_correct")}
    made = named(
        spec,
        linears={**LLAMA_LINEARS, **PER_LAYER_LINEARS, **_LINEARS},
        norms={**NORM_NAMES, **_NORMS, **(_SCALE if spec.altup.scaled else {})},
        outside={**LLAMA_OUTSIDE, **PER_LAYER_NAMES},
        fields={
            **flat,
            "altup_router_norm": {"factor": 1 / spec.hidden_size},
            "per_layer_embed": {"rows": (0, spec.per_layer_tokens)},
        },
    )
    for number in range(spec.altup.count - 1):
        for ours, theirs in zip(ALTUP_PROJECTIONS, ("altup_projections", "altup_unembed_projections"), strict=True):
            name = f"{theirs}.{number}.weight"
            made[f"altup.{number}.{ours}.weight"] = Source(f"model.{name}", alternatives=(name,))
    return also_named(inside(made), {"per_layer_model_projection": "per_layer_model.language_model_projection"})
