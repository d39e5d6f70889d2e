"""Qwen4, the text part: Qwen3.5-MoE with gated residuals of several streams."""

from __future__ import annotations

from dataclasses import replace

from ipex_assist.models import qwen3_5_text
from ipex_assist.models.common import FULL, experts, layer_count
from ipex_assist.models.config import Config, ConfigError, NotComputed
from ipex_assist.models.gated_delta import LINEAR, hybrid
from ipex_assist.models.names import MIXER_GATE, MLP_GATE
from ipex_assist.models.recurrent_spec import RecurrentSpec
from ipex_assist.models.spec import DecoderSpec, LayerSpec
from ipex_assist.models.stream_spec import HEAD_GATE, StreamSpec
from ipex_assist.models.weights import Source

ARCHITECTURE = "Qwen4ExpForCausalLM"
EXAMPLES = ("Qwen/Qwen4-Exp",)
NAMES = {"norm_eps": "rms_norm_eps"}
_INDEXED = "indexed_attention"
_GATES = ("input_mix_weight_down", "input_mix_weight_up")
_PLACES = {"attention": "attn_hyper_connection", "mlp": "mlp_hyper_connection"}
_NORMS = {f"{ours}_norm": f"{theirs}.hc_norm" for ours, theirs in _PLACES.items()}
_OUTSIDE = {"embed_tokens": "model.embed_tokens", "lm_head": "lm_head"} | {
    "final_norm": "model.hyper_connection_mixer.hc_norm",
    **{ours: f"model.hyper_connection_mixer.{theirs}" for ours, theirs in zip(HEAD_GATE, _GATES, strict=True)},
}
_LINEARS = {f"{ours}_hc": f"{theirs}.block_inject_weight" for ours, theirs in _PLACES.items()} | {
    ours: f"{place}.{theirs}"
    for gate, place in zip((MIXER_GATE, MLP_GATE), _PLACES.values(), strict=True)
    for ours, theirs in zip(gate, _GATES, strict=True)
}


def spec(config: Config) -> DecoderSpec:
    """Every layer has experts and a shared one that a sigmoid weights. Published configs say "full_attention"."""
    if config.values.get("ple_layer_ids"):
        raise NotComputed("ple_layer_ids is not supported, only layers without embeddings of n-grams")
    count = layer_count(config)
    every = config.integer("full_attention_interval", 4)
    usual = [LINEAR if every < 1 or (layer + 1) % every else FULL for layer in range(count)]
    kinds = [FULL if kind == _INDEXED else kind for kind in config.optional_texts("layer_types") or usual]
    if FULL in kinds:
        raise NotComputed("layers with an indexer are not supported")
    size = config.integer("shared_expert_intermediate_size", 512)
    normalised = config.flag("norm_topk_prob", True)
    routed = experts(config, shared_size=size, shared_gate=True, normalised=normalised)
    made = hybrid("qwen4_exp_text", Config({**config.values, "layer_types": kinds}, config.other_names), experts=routed)
    rank = config.integer("hc_lowrank", 320)
    streams = StreamSpec(config.integer("hc_count", 4), eps=0.0, gate_rank=rank)
    if not rank:
        raise ConfigError("hc_lowrank", rank, "at least 1")
    gate = config.values.get("output_gate_type") or config.text("hidden_act", "silu")
    if gate not in ("sigmoid", "silu"):
        raise NotComputed(f"output_gate_type {gate!r} is not supported, only 'sigmoid' and 'silu'")
    layers = (_layer(layer, rank, gate == "sigmoid") for layer in made.layers)
    return replace(made, layers=tuple(layers), streams=streams)


def _layer(layer: LayerSpec, rank: int, sigmoid: bool) -> LayerSpec:
    mixer = layer.mixer
    if isinstance(mixer, RecurrentSpec):
        mixer = replace(mixer, sigmoid_gate=sigmoid)
    return replace(layer, mixer=mixer, mixer_gate_rank=rank, mlp_gate_rank=rank)


def weights(spec: DecoderSpec) -> dict[str, Source]:
    """Norms weight by 1 + w, but for those of recurrent layers."""
    return qwen3_5_text.weights(spec, norms=_NORMS, linears=_LINEARS, outside=_OUTSIDE)
