"""OLMo Hybrid: Gated DeltaNet in three of four layers, OLMo 3's attention in the fourth, each with its own norms."""

from __future__ import annotations

from dataclasses import replace

from ipex_assist.models.common import FULL, even_head_dim, layer_count, llama_like, rope
from ipex_assist.models.config import Config, NotComputed
from ipex_assist.models.gated_delta import LINEAR, VECTORS, convolved_together, mixer_kinds
from ipex_assist.models.layers import with_mixers
from ipex_assist.models.names import HEAD_NORMS, named
from ipex_assist.models.recurrent_spec import RecurrentSpec
from ipex_assist.models.rope_spec import Rope
from ipex_assist.models.spec import DecoderSpec
from ipex_assist.models.weights import Source

ARCHITECTURE = "OlmoHybridForCausalLM"
EXAMPLES = ("allenai/Olmo-Hybrid-7B",)
NAMES = {"norm_eps": "rms_norm_eps"}
_NORMS = {"attention_norm": "input_layernorm", "mlp_norm": "post_attention_layernorm", **HEAD_NORMS}
_NORMS |= {"attention_out_norm": "post_attention_layernorm", "mlp_out_norm": "post_feedforward_layernorm"}
# Their other names in checkpoints.
_OTHERS = dict.fromkeys(("mlp_norm", "attention_out_norm"), "feedforward_layer_norm")
_OTHERS["attention_norm"] = "attention_layer_norm"
_RECURRENT = {f"{part}_in": f"linear_attn.{part}_proj" for part in "qkvab"}
_RECURRENT |= {f"{part}_conv": f"linear_attn.{part}_conv1d.weight" for part in "qkv"}
_NAMES = {**VECTORS, "gated_norm": "o_norm.weight", "z_in": "g_proj", "mixer_out": "o_proj"}
_RECURRENT |= {leaf: f"linear_attn.{name}" for leaf, name in _NAMES.items()}


def spec(config: Config) -> DecoderSpec:
    """Norms are before a recurrent layer's parts, and after those of attention."""
    bias = config.flag("attention_bias", False)
    usual = [FULL if layer % 4 == 3 else LINEAR for layer in range(layer_count(config))]
    kinds = mixer_kinds(config, usual if FULL in usual else [*usual[:-1], FULL])
    alike = llama_like(
        "olmo_hybrid",
        config,
        head_dim=config.optional_integer("head_dim") or even_head_dim(config),
        norm_place="post",
        qk_norm="all_heads",
        qkv_bias=bias,
        output_bias=bias,
        ropes=_ropes(config),
    )
    mixed = with_mixers(alike, [_mixer(config) if kind == LINEAR else None for kind in kinds])
    layers = (each if each.recurrent is None else replace(each, norm_place="pre") for each in mixed.layers)
    return replace(mixed, layers=tuple(layers))


def _mixer(config: Config) -> RecurrentSpec:
    heads = config.integer("num_attention_heads")
    key_heads, hidden = config.integer("linear_num_key_heads", heads), config.integer("hidden_size")
    key_dim = config.integer("linear_key_head_dim", int(0.75 * hidden / max(key_heads, 1)))
    return RecurrentSpec(
        kind="gated_delta",
        heads=config.integer("linear_num_value_heads", heads),
        key_heads=key_heads,
        key_dim=key_dim,
        value_dim=config.integer("linear_value_head_dim", 2 * key_dim),
        conv_kernel=config.integer("linear_conv_kernel_dim", 4),
        beta_scale=2.0 if config.flag("linear_allow_neg_eigval", True) else 1.0,
        norm_eps=1e-5,
    )


def _ropes(config: Config) -> tuple[Rope, ...]:
    """None where rope_parameters has a rope_theta that is null, as those of published models."""
    part = config.part("rope_parameters") or config.part("rope_scaling") or dict(config.values)
    if "rope_theta" not in part:
        raise NotComputed("a config that does not say whether there are rotary positions is not supported")
    if part["rope_theta"] is None:
        return ()
    if (found := rope(config)).by_length:
        raise NotComputed(f"{found.kind} rope is not supported")
    return (found,)


def weights(spec: DecoderSpec) -> dict[str, Source]:
    """Convolutions lie in three tensors, or in one, as transformers has them."""
    made = named(spec, norms=_NORMS, recurrent=_RECURRENT)
    for number in range(spec.num_hidden_layers):
        ours, theirs = f"layers.{number}.{{}}.weight", f"model.layers.{number}."
        for leaf, name in _OTHERS.items():
            if (norm := ours.format(leaf)) in made:
                made[norm] = replace(made[norm], alternatives=(f"{theirs}{name}.weight",))
    convolved_together(spec, made, "linear_attn.conv1d.weight")
    return made
