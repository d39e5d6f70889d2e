"""LFM2: short convolutions in most layers, attention with a norm of each head in the others."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ipex_assist.models.common import FULL, SLIDING, check_kinds, layer_count, llama_like, number_or_none, rope
from ipex_assist.models.config import Config, ConfigError
from ipex_assist.models.layers import with_mixers
from ipex_assist.models.names import ExpertNames, named, stacked
from ipex_assist.models.recurrent_spec import RecurrentSpec
from ipex_assist.models.spec import DecoderSpec
from ipex_assist.models.weights import Source

ARCHITECTURE = "Lfm2ForCausalLM"
EXAMPLES = ("LiquidAI/LFM2-1.2B", "LiquidAI/LFM2-2.6B")
NAMES = {"linear_conv_kernel_dim": "conv_L_cache"}

CONV = "conv"
_LINEARS = {
    **{f"{leaf}_proj": f"self_attn.{leaf}_proj" for leaf in "qkv"},
    "o_proj": "self_attn.out_proj",
    **{"gate_proj": "feed_forward.w1", "up_proj": "feed_forward.w3", "down_proj": "feed_forward.w2"},
}
_NORMS = {
    **{"attention_norm": "operator_norm", "mlp_norm": "ffn_norm"},
    **{"q_norm": "self_attn.q_layernorm", "k_norm": "self_attn.k_layernorm"},
}
_OUTSIDE = {"embed_tokens": "model.embed_tokens", "final_norm": "model.embedding_norm", "lm_head": "lm_head"}
_PARTS = ("k_in", "q_in", "v_in")  # B, C and x, in this order in one tensor
_RECURRENT = {**dict.fromkeys(_PARTS, "conv.in_proj"), "v_conv": "conv.conv.weight", "mixer_out": "conv.out_proj"}


def spec(config: Config) -> DecoderSpec:
    """`full_attn_idxs` are the layers with attention, where `layer_types` does not say it; all if neither does."""
    count = layer_count(config)
    attention = config.integers("full_attn_idxs") if config.values.get("full_attn_idxs") is not None else range(count)
    kinds = [FULL if layer in attention else CONV for layer in range(count)]
    size = _adjusted(config, config.optional_integer("block_ff_dim") or config.integer("intermediate_size"))
    return convolved("lfm2", config, config.optional_texts("layer_types") or kinds, intermediate_size=size)


def convolved(model_type: str, config: Config, kinds: list[str], *, kernel: int = 3, **differences: Any) -> DecoderSpec:
    """The spec of a model with layers of these kinds. kernel: of a config without one. NotComputed for other kinds."""
    check_kinds(kinds, FULL, CONV, *((SLIDING,) if "sliding_windows" in differences else ()))
    fields: dict[str, Any] = {
        "activation": "silu",
        "norm_eps": config.number("norm_eps", 1e-5),
        "qk_norm": "head",
        "tied_head": config.flag("tie_embedding", config.flag("tie_word_embeddings", True)),
    }
    if "ropes" not in differences:
        fields["ropes"] = (rope(config, 1e6),)
    alike = llama_like(model_type, config, **fields, **differences)
    bias, width = config.flag("conv_bias", False), alike.hidden_size
    kernel = config.integer("linear_conv_kernel_dim", kernel)
    mixer = RecurrentSpec("short_conv", 1, 1, width, width, kernel, conv_bias=bias, input_bias=bias, output_bias=bias)
    return with_mixers(alike, [mixer if kind == CONV else None for kind in kinds])


def _adjusted(config: Config, size: int) -> int:
    """Two thirds of the size that is given, rounded up, unless the config says that it is what it says."""
    if not config.flag("block_auto_adjust_ff_dim", True):
        return size
    size, step = int(2 * size / 3), config.integer("block_multiple_of", 256)
    factor = number_or_none(config, "block_ffn_dim_multiplier", 1.0)
    if factor is None:
        return size
    if step < 1:
        raise ConfigError("block_multiple_of", step, "at least 1")
    return -(-int(factor * size) // step) * step


def weights(
    spec: DecoderSpec,
    experts: ExpertNames | None = None,
    linears: Mapping[str, str] | None = None,
    norms: Mapping[str, str] | None = None,
) -> dict[str, Source]:
    """The three inputs of a convolution lie in one tensor. linears, norms: names of a relative's that differ."""
    fields = {**stacked(dict.fromkeys(_PARTS, spec.hidden_size)), "v_conv": {"flat": True}}
    names: dict[str, Any] = {"linears": {**_LINEARS, **(linears or {})}, "norms": {**_NORMS, **(norms or {})}}
    return named(spec, fields=fields, experts=experts, outside=_OUTSIDE, recurrent=_RECURRENT, **names)
