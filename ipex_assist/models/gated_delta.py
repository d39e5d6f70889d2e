"""What Qwen's models with Gated DeltaNet layers share: three of four layers are recurrent, the fourth is attention."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ipex_assist.models.common import FULL, activation, check_kinds, layer_count, llama_like, rope, rotary_part
from ipex_assist.models.config import Config, NotComputed
from ipex_assist.models.layers import with_mixers
from ipex_assist.models.names import HEAD_NORMS, LLAMA_LINEARS, LLAMA_NORMS, ExpertNames, named, stacked
from ipex_assist.models.recurrent_spec import RecurrentSpec
from ipex_assist.models.spec import DecoderSpec
from ipex_assist.models.weights import Source

LINEAR = "linear_attention"
# Vectors of a mixer, by our names; convolutions and inputs differ between the families.
VECTORS = {"a_log": "A_log", "dt_bias": "dt_bias", "gated_norm": "norm.weight"}


def hybrid(model_type: str, config: Config, rotated: float = 0.25, **differences: Any) -> DecoderSpec:
    """The spec of such a model. rotated: the part of a head, where the config does not say.

    Raises NotComputed for layers of other kinds.
    """
    every = config.integer("full_attention_interval", 4)
    kinds = mixer_kinds(
        config, [LINEAR if every < 1 or (layer + 1) % every else FULL for layer in range(layer_count(config))]
    )
    bias, head_dim = config.flag("attention_bias", False), config.integer("head_dim", 256)
    alike = llama_like(
        model_type,
        config,
        head_dim=head_dim,
        rotary_dim=rotary_part(config, head_dim, rotated),
        ropes=(rope(config, partial=True),),
        qkv_bias=bias,
        output_bias=bias,
        output_gate=True,
        qk_norm="head",
        **differences,
    )
    mixer = RecurrentSpec(
        kind="gated_delta",
        heads=config.integer("linear_num_value_heads", 32),
        key_heads=config.integer("linear_num_key_heads", 16),
        key_dim=config.integer("linear_key_head_dim", 128),
        value_dim=config.integer("linear_value_head_dim", 128),
        conv_kernel=config.integer("linear_conv_kernel_dim", 4),
    )
    return with_mixers(alike, [mixer if kind == LINEAR else None for kind in kinds])


def mixer_kinds(config: Config, usual: list[str]) -> list[str]:
    """`layer_types`, or these. Raises NotComputed for other kinds, and for a convolution of another activation."""
    kinds = config.optional_texts("layer_types") or usual
    check_kinds(kinds, FULL, LINEAR)
    if activation(config.text("hidden_act", "silu")) != "silu":
        raise NotComputed("Gated DeltaNet layers with another activation than silu are not supported")
    return kinds


def convolution_rows(mixer: RecurrentSpec) -> dict[str, dict[str, Any]]:
    """Which rows of the one tensor of a convolution are those of queries, keys and values."""
    return stacked({"q_conv": mixer.key_size, "k_conv": mixer.key_size, "v_conv": mixer.value_size})


def convolved_together(spec: DecoderSpec, made: dict[str, Source], tensor: str) -> None:
    """Let convolutions of recurrent layers, which lie in three tensors, be found in one of this name, too.

    tensor: within a layer.
    """
    for number, layer in enumerate(spec.layers):
        if layer.recurrent is None:
            continue
        for leaf, rows in convolution_rows(layer.recurrent).items():
            ours = f"layers.{number}.{leaf}.weight"
            one = Source(f"model.layers.{number}.{tensor}", flat=True, **rows)
            made[ours] = replace(made[ours], flat=True, otherwise=one)


def hybrid_weights(
    spec: DecoderSpec,
    inputs: Mapping[str, str],
    fields: Mapping[str, Mapping[str, Any]],
    *,
    norms: Mapping[str, str] = LLAMA_NORMS,
    linears: Mapping[str, str] | None = None,
    **others: Any,
) -> dict[str, Source]:
    """Their weights. inputs: names of the parts of the input linear; fields: of `Source`, by our names.

    norms: names of the norms of a layer's rows; linears: of those that others of these models do not have.

    Norms weight by 1 + w, but for those of recurrent layers. Queries and gates alternate, head by head.
    """
    mixer = spec.recurrents[0] if spec.recurrents else None
    norms = {**norms, **HEAD_NORMS}
    shifted = {leaf: {"plus": 1.0} for leaf in (*norms, "final_norm")}
    gated = {"q_proj": {"interleaved": (0, 1, 2)}, "g_proj": {"interleaved": (1, 2, 2)}}
    recurrent = {
        **inputs,
        "mixer_out": "out_proj",
        **VECTORS,
        **dict.fromkeys(("q_conv", "k_conv", "v_conv"), "conv1d.weight"),
    }
    rows = {} if mixer is None else convolution_rows(mixer)
    convolved = {leaf: {**each, "flat": True} for leaf, each in rows.items()}
    return named(
        spec,
        linears={**LLAMA_LINEARS, "g_proj": "self_attn.q_proj", **(linears or {})},
        norms=norms,
        fields={**shifted, **gated, **convolved, **fields},
        recurrent={leaf: f"linear_attn.{name}" for leaf, name in recurrent.items()},
        experts=ExpertNames(),
        **others,
    )
