"""RecurrentGemma: RG-LRUs in two of three layers, attention over a window in the third."""

from __future__ import annotations

import struct
from dataclasses import replace

from ipex_assist.models.common import (
    activation,
    check_kinds,
    even_head_dim,
    every_layer,
    layer_count,
    llama_like,
    positive,
    rope,
    rotary_part,
)
from ipex_assist.models.config import Config, ConfigError, NotComputed
from ipex_assist.models.gemma import PLUS_ONE
from ipex_assist.models.layers import with_mixers
from ipex_assist.models.mamba_layers import CONTEXT
from ipex_assist.models.names import LLAMA_OUTSIDE, MLP, named, renamed
from ipex_assist.models.recurrent_spec import RecurrentSpec
from ipex_assist.models.spec import DecoderSpec
from ipex_assist.models.weights import Source

ARCHITECTURE = "RecurrentGemmaForCausalLM"
EXAMPLES = ("google/recurrentgemma-9b-it", "google/recurrentgemma-2b-it")
NAMES = {
    **{"norm_eps": "rms_norm_eps", "sliding_window": "attention_window_size", "linear_value_head_dim": "lru_width"},
    **{"linear_conv_kernel_dim": "conv1d_width", "final_logit_softcapping": "logits_soft_cap"},
}
_RECURRENT, _ATTENTION = "recurrent", "attention"
_PLACE = "temporal_block"
_LINEARS = {f"{leaf}_proj": f"{_PLACE}.{leaf}_proj" for leaf in "qkvo"} | {leaf: f"mlp_block.{leaf}" for leaf in MLP}
_GATES = {"a_in": "rg_lru.recurrent_gate", "b_in": "rg_lru.input_gate"}
_MIXER = {
    **{"v_in": "linear_x", "z_in": "linear_y", "mixer_out": "linear_out", "v_conv": "conv_1d.weight"},
    **{**_GATES, "a_param": "rg_lru.recurrent_param"},
}


def spec(config: Config) -> DecoderSpec:
    """`block_types` are repeated over the layers; an MLP is half as wide as the config says."""
    count, act = layer_count(config), activation(config.text("hidden_activation", "gelu_pytorch_tanh"))
    kinds = config.optional_texts("block_types") or [_RECURRENT, _RECURRENT, _ATTENTION]
    check_kinds(kinds, _RECURRENT, _ATTENTION)
    kinds = (kinds * count)[:count]
    head_dim = config.optional_integer("head_dim") or even_head_dim(config)
    bias = config.flag("attention_bias", False)
    alike = llama_like(
        "recurrent_gemma",
        config,
        intermediate_size=config.integer("intermediate_size") // 2,
        max_position_embeddings=config.integer("max_position_embeddings", CONTEXT),
        activation=act,
        mlp_bias=True,
        qkv_bias=bias,
        output_bias=True,
        ropes=(rope(config, partial=True),),
        rotary_dims=(rotary_part(config, head_dim, 0.5),) * count,
        sliding_windows=every_layer(config, config.integer("sliding_window", 2048)),
        embedding_multiplier=_bfloat16(max(config.integer("hidden_size"), 0) ** 0.5),
        logit_cap=positive(config, "final_logit_softcapping", 30.0),
        tied_head=config.flag("tie_word_embeddings", True),
    )
    if _RECURRENT not in kinds:
        return alike
    if act != "gelu_tanh":
        raise NotComputed("RG-LRUs with another activation than gelu_pytorch_tanh are not supported")
    mixer = _mixer(config)
    return with_mixers(alike, [mixer if kind == _RECURRENT else None for kind in kinds])


def _mixer(config: Config) -> RecurrentSpec:
    blocks = config.integer("num_attention_heads")
    width = config.integer("linear_value_head_dim", config.integer("hidden_size"))
    if width % blocks:
        raise ConfigError("linear_value_head_dim", width, f"a multiple of the {blocks} heads")
    if width // blocks % 16:
        raise NotComputed(f"RG-LRUs of blocks of {width // blocks} channels are not supported: multiples of 16 are")
    kernel = config.integer("linear_conv_kernel_dim", 4)
    block = width // blocks
    return RecurrentSpec(
        "rg_lru", blocks, 1, 1, block, kernel, conv_bias=True, input_bias=True, output_bias=True, gate_rank=block
    )


def _bfloat16(value: float) -> float:
    """The nearest bfloat16, in which the embedding's factor is stored."""
    bits = struct.unpack("<I", struct.pack("<f", value))[0]
    return float(struct.unpack("<f", struct.pack("<I", (bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000))[0])


def weights(spec: DecoderSpec) -> dict[str, Source]:
    """The matrices of gates are (blocks, in, out); their biases (blocks, out)."""
    recurrents = spec.recurrents
    block = recurrents[0].gate_rank if recurrents else 0
    made = named(
        spec,
        linears=_LINEARS,
        norms={"attention_norm": "temporal_pre_norm", "mlp_norm": "channel_pre_norm"},
        outside={**LLAMA_OUTSIDE, "final_norm": "model.final_norm"},
        fields={**PLUS_ONE, "v_conv": {"flat": True}},
        recurrent={leaf: f"{_PLACE}.{name}" for leaf, name in _MIXER.items()},
    )
    for ours, source in made.items():
        kind = ours.rpartition(".")[2]
        if any(gate in source.name for gate in _GATES.values()):
            form = {"heads_transposed": block} if kind == "weight" else {"flat": True}
            made[ours] = replace(renamed(source, _names), **form)
    return made


def _names(name: str) -> list[str]:
    return ["_".join(name.rsplit(".", 1))]
