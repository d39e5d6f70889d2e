"""Mistral Large 4's text part: sparse attention over latents that layers share, with learned frequencies and scales."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

from ipex_assist.env.errors import IpexAssistError
from ipex_assist.models.common import deepseek_experts, layer_count, positive, refuse, rope, sparse_kinds, text_part
from ipex_assist.models.config import Config, ConfigError, NotComputed
from ipex_assist.models.latent import check_layer_types, indexer_kinds, latent_decoder, latent_weights, with_indexers
from ipex_assist.models.names import INDEX_LOG_GROWTH, LOG_GROWTH, inside, renamed
from ipex_assist.models.spec import DecoderSpec, LayerSpec
from ipex_assist.models.weights import Source

ARCHITECTURE = "MistralLarge4ForConditionalGeneration"
EXAMPLES = ("mistralai/Mistral-Large-4-1T-A52B",)
NAMES = {"norm_eps": "rms_norm_eps", "num_experts": "n_routed_experts"}
_SIZES = {"kv_lora_rank": 512, "qk_rope_head_dim": 64, "qk_nope_head_dim": 64, "v_head_dim": 128}
_ROPE = {
    **{"rope_type": "yarn", "rope_theta": 10000.0, "factor": 2048.0, "original_max_position_embeddings": 512},
    **{"beta_fast": 32.0, "beta_slow": 1.0, "attention_factor": 1.0},
}
_FREQUENCIES = (
    "lerope.alpha",
    *(f"{place}.rotary_emb.alpha" for place in ("model.language_model", "language_model.model", "model")),
)
_LINEARS = {
    **dict(zip(LOG_GROWTH, ("self_attn.softmax_scaling.scale", "self_attn.softmax_scaling.bias"), strict=True)),
    **{
        ours: f"self_attn.indexer.softmax_scaling.{leaf}"
        for ours, leaf in zip(INDEX_LOG_GROWTH, ("scale", "bias"), strict=True)
    },
}
# What the published checkpoint calls parts of transformers' names, in this order; it has nothing before "layers".
_PUBLISHED = {
    **{"embed_tokens.": "tok_embeddings.", "lm_head.": "output.", ".self_attn.": ".attention."},
    **{".q_proj.": ".wq.", ".kv_a_proj_with_mqa.": ".wkv_a_with_mqa.", ".kv_b_proj.": ".wkv_b.", ".o_proj.": ".wo."},
    **{".input_layernorm.": ".attention_norm.", ".post_attention_layernorm.": ".ffn_norm."},
    **{".kv_a_layernorm.": ".kv_a_norm.", ".mlp.gate.": ".gate.", ".mlp.experts.": ".experts."},
    **{".mlp.shared_experts.": ".shared_experts.", ".mlp.": ".feed_forward."},
    **{".gate_proj.": ".w1.", ".down_proj.": ".w2.", ".up_proj.": ".w3."},
    **{".softmax_scaling.scale": ".ssmax_scaling.s", ".softmax_scaling.bias": ".ssmax_scaling.b"},
}


def spec(config: Config) -> DecoderSpec:
    """That of the text part. Layers without positions rotate nothing; some have latents of others."""
    text = text_part(config)
    refuse(text, q_lora_rank=None)
    check_layer_types(text)
    if not (text.part("rope_parameters") or text.part("rope_scaling")):
        text = Config({**text.values, "rope_parameters": _ROPE}, text.other_names)
    routed = deepseek_experts(
        text,
        scores="softmax",
        correction_bias=False,
        normalised=True,
        shared=text.integer("n_shared_experts", 1),
    )
    epsilon = text.number("norm_eps", 1e-5)
    made = latent_decoder(
        *("mistral_large4", text, _SIZES),
        positions=rope(text),
        experts=routed,
        sparse=sparse_kinds(text),
        norm_eps=epsilon,
        log_growth=True,
        logit_cap=positive(text, "final_logit_softcapping", 30.0),
    )
    rotated, sources = _rotated(text), _sources(text)
    layers = (
        _layer(each, epsilon, here, None if source == number else source)
        for number, (each, here, source) in enumerate(zip(made.layers, rotated, sources, strict=True))
    )
    made = replace(made, layers=tuple(layers))
    shared = [kind == "shared" for kind in indexer_kinds(text)]
    return with_indexers(made, text, shared, heads=32, reads_input=True)


def _layer(layer: LayerSpec, epsilon: float, rotated: bool, source: int | None) -> LayerSpec:
    """A layer whose latents are those of layer `source`, or its own."""
    latent = layer.attention.latent
    assert latent is not None
    latent = replace(latent, norm_eps=epsilon)
    attention = replace(layer.attention, latent=latent, kv_layer=source)
    if not rotated:
        latent = replace(latent, rope_dim=0, nope_dim=latent.nope_dim + latent.rope_dim)
        attention = replace(attention, latent=latent, head_dim=latent.head_dim, rope=None, rotary_dim=None)
    return replace(layer, mixer=attention)


def _rotated(config: Config) -> list[bool]:
    """Which layers have rotary positions: as they are listed, or all but every fourth."""
    count, each = layer_count(config), config.integer("no_rope_layer_interval", 4)
    if each < 1:
        raise ConfigError("no_rope_layer_interval", each, "at least 1")
    given = config.values.get("no_rope_layers") is not None
    usual = (int((layer + 1) % each != 0) for layer in range(count))
    kinds = list(config.integers("no_rope_layers") if given else usual)
    if len(kinds) < count:
        raise ConfigError("no_rope_layers", f"a list of {len(kinds)}", f"one for each of {count} layers")
    return [kind != 0 for kind in kinds[:count]]


def _sources(config: Config) -> list[int]:
    """Whose latents each layer attends to. Raises ConfigError, and NotComputed where transformers takes others.

    Those are of the last layer before it that others share, of those with positions or without, as it is itself.
    """
    count = layer_count(config)
    given = config.values.get("kv_source_layers") is not None
    sources = list(config.integers("kv_source_layers") if given else range(count))
    if len(sources) != count:
        raise ConfigError("kv_source_layers", f"a list of {len(sources)}", f"one for each of {count} layers")
    rotated = _rotated(config)
    last: dict[bool, int] = {}
    for layer, source in enumerate(sources):
        if not 0 <= source <= layer or sources[source] != source:
            raise ConfigError("kv_source_layers", source, f"a layer up to {layer} with latents of its own")
        if source != layer and last.get(rotated[layer]) != source:
            raise NotComputed(f"layer {layer} shares latents of layer {source}, which is not the last that has such")
        if source == layer and layer in sources[layer + 1 :]:
            last[rotated[layer]] = layer
    return sources


def learned(spec: DecoderSpec, numbers: Callable[[Sequence[str]], list[float]]) -> DecoderSpec:
    """The checkpoint has a logarithm of what each frequency is multiplied with."""
    (positions,) = spec.ropes
    logs = numbers(_FREQUENCIES)
    if not all(math.isfinite(each) for each in logs):
        raise IpexAssistError(f"{_FREQUENCIES[0]} holds what is no number: the file is damaged. Download it again")
    return replace(spec, ropes=(replace(positions, scaling={**positions.scaling, "frequency_logs": logs}),))


def weights(spec: DecoderSpec) -> dict[str, Source]:
    """Those of latent attention by the names of both; layers that rotate nothing have other rows of a head."""
    latents = [layer.attention.latent for layer in spec.layers]
    made: dict[str, Source] = {}
    for number in {latent.rope_dim: number for number, latent in enumerate(latents) if latent is not None}.values():
        latent = latents[number]
        assert latent is not None
        found = latent_weights(
            spec,
            index_rotated={"pairs": latent.rope_dim},
            norms={"index_q_norm": "self_attn.indexer.q_input_norm"},
            linears=_LINEARS,
            layer=number,
        )
        for ours, source in found.items():
            place, _, rest = ours.partition(".")
            of = latents[int(rest.partition(".")[0])] if place == "layers" else None
            if of is None or of.rope_dim == latent.rope_dim:
                made[ours] = source
    return {ours: renamed(source, _names) for ours, source in inside(made).items()}


def _names(name: str) -> list[str]:
    other = name.replace("language_model.", "").removeprefix("model.")
    for part, theirs in _PUBLISHED.items():
        other = other.replace(part, theirs)
    return [other, name]
