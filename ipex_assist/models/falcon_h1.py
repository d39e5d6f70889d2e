"""Falcon-H1: attention and Mamba-2 side by side in every layer, and a multiplier of what each linear gives."""

from __future__ import annotations

from dataclasses import replace

from ipex_assist.models.common import even_head_dim, llama_like, rope
from ipex_assist.models.config import Config, ConfigError, NotComputed
from ipex_assist.models.mamba_layers import BAMBA_NAMES, bamba_mixer, kv_heads, mamba_fields, mamba_names
from ipex_assist.models.names import LLAMA_LINEARS, MLP, named, renumbered
from ipex_assist.models.recurrent_spec import RecurrentSpec
from ipex_assist.models.spec import DecoderSpec, LayerSpec
from ipex_assist.models.weights import Source

ARCHITECTURE = "FalconH1ForCausalLM"
EXAMPLES = ("tiiuae/Falcon-H1-7B-Instruct", "tiiuae/Falcon-H1-34B-Instruct", "tiiuae/Falcon-H1-0.5B-Instruct")
NAMES = {"norm_eps": "rms_norm_eps", "logit_multiplier": "lm_head_multiplier", **BAMBA_NAMES}
_LINEARS = {**LLAMA_LINEARS, **{leaf: f"feed_forward.{leaf}" for leaf in MLP}}
_NORMS = {"attention_norm": "input_layernorm", "mlp_norm": "pre_ff_layernorm"}
_OUTSIDE = {"embed_tokens": "model.embed_tokens", "final_norm": "model.final_layernorm", "lm_head": "lm_head"}
_PARTS = ("z_in", "v_in", "k_in", "q_in", "a_in")  # as ssm_multipliers has them


def spec(config: Config) -> DecoderSpec:
    """Each layer is two here: Mamba-2 without an MLP, and attention beside it, with the MLP."""
    bias = config.flag("attention_bias", False)
    alike = llama_like(
        "falcon_h1",
        config,
        num_key_value_heads=kv_heads(config),
        head_dim=config.optional_integer("head_dim") or even_head_dim(config),
        norm_eps=config.number("norm_eps", 1e-5),
        max_position_embeddings=config.integer("max_position_embeddings", 8192),
        qkv_bias=bias,
        output_bias=bias,
        mlp_bias=config.flag("mlp_bias", False),
        ropes=(rope(config),),
        embedding_multiplier=config.number("embedding_multiplier", 1.0),
        logit_multiplier=config.number("logit_multiplier", 1.0),
        linear_multipliers=_multipliers(config),
    )
    mixer = LayerSpec(_mixer(config), None)
    pairs = ((mixer, replace(layer, beside=True)) for layer in alike.layers)
    return replace(alike, layers=tuple(each for pair in pairs for each in pair))


def _mixer(config: Config) -> RecurrentSpec:
    null = "mamba_d_ssm" in config.values and config.values["mamba_d_ssm"] is None
    mixer = bamba_mixer(config, None if null else config.integer("mamba_d_ssm", 1024))
    normed = config.flag("mamba_rms_norm", False)
    if normed and config.flag("mamba_norm_before_gate", True):
        raise NotComputed("mamba_norm_before_gate true is not supported with mamba_rms_norm")
    groups = mixer.key_heads if normed else 0
    return replace(mixer, norm_groups=groups, output_bias=config.flag("projectors_bias", False))


def _multipliers(config: Config) -> tuple[tuple[str, float, float], ...]:
    """Of what linears read and give; of what they read, biases have none."""
    ssm, mlp = (_list(config, name, count) for name, count in (("ssm_multipliers", 5), ("mlp_multipliers", 2)))
    read, key = (config.number(f"{name}_multiplier", 1.0) for name in ("attention_in", "key"))
    scanned, out = (config.number(f"ssm_{name}_multiplier", 1.0) for name in ("in", "out"))
    given = config.number("attention_out_multiplier", 1.0)
    made = [("q_proj", read, 1.0), ("k_proj", read * key, key), ("v_proj", read, 1.0), ("o_proj", given, given)]
    made += [("mixer_out", out, out), ("gate_proj", mlp[0], mlp[0]), ("down_proj", mlp[1], mlp[1])]
    return (*made, *((leaf, scanned * each, each) for leaf, each in zip(_PARTS, ssm, strict=True)))


def _list(config: Config, name: str, count: int) -> tuple[float, ...]:
    found = (1.0,) * count if config.values.get(name) is None else config.numbers(name)
    if len(found) != count:
        raise ConfigError(name, list(found), f"a list of {count} numbers")
    return found


def weights(spec: DecoderSpec) -> dict[str, Source]:
    """Both layers of a pair have the same norm before their mixers."""
    made = named(
        spec,
        linears=_LINEARS,
        norms=_NORMS,
        outside=_OUTSIDE,
        fields={**mamba_fields(spec.recurrents[0]), "final_norm": {"factor": spec.logit_multiplier}},
        recurrent=mamba_names("mamba"),
    )
    factors = {leaf: {"weight": weight, "bias": bias} for leaf, weight, bias in spec.linear_multipliers}
    for ours, source in made.items():
        leaf, kind = ours.split(".")[-2:]
        made[ours] = replace(source, factor=factors.get(leaf, {}).get(kind, source.factor))
    return renumbered(made, lambda layer, _: layer // 2)
