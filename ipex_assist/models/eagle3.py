"""EAGLE-3 heads, as their makers publish them (SpecForge, NVIDIA and others) and as `speculators` saves them."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

from ipex_assist.models.common import refuse
from ipex_assist.models.config import Config, NotComputed
from ipex_assist.models.draft_head import HeadSpec, InputNorm, Taps
from ipex_assist.models.head_common import DraftHead
from ipex_assist.models.head_layers import layers_of, named_head, vocabulary
from ipex_assist.models.spec import DecoderSpec
from ipex_assist.models.weights import Source

_FIRST = "layers.0."
_FIRST_NAMES = ("midlayer.", "model.layers.0.", "model.midlayer.")  # of the first layer in other checkpoints


def eagle3_of(config: Config, names: Collection[str], target: DecoderSpec) -> DraftHead:
    """The head of a checkpoint with this config and tensors of these names. Raises NotComputed and ConfigError.

    Hidden states that it reads are, where it does not say which, of a layer near the first, the middle and the last.
    """
    options = Config(config.part("eagle_config"))
    refuse(options, use_aux_hidden_state=True, use_input_layernorm_in_first_layer=True, use_last_layernorm=True)
    refuse(options, use_mtp_layernorm=False)
    decoder, present = layers_of(config, "eagle3", target), frozenset(names)
    name, count = "eagle_aux_hidden_state_layer_ids", target.num_hidden_layers
    layers = options.integers(name) or config.integers(name) or (2, count // 2, count - 3)
    if len(layers) < 2 or min(layers) < 0:
        raise NotComputed(f"EAGLE-3 with hidden states of layers {list(layers)} is not supported, only of 2 or more")
    head = HeadSpec(
        "eagle3",
        Taps(layers),
        target_hidden_size=config.optional_integer("target_hidden_size") or decoder.hidden_size,
        input_norm=_input_norm(config),
        norm_before_residual=config.flag("norm_before_residual", False),
        fed_back_normed=config.flag("norm_output", False),
        **vocabulary(config, present, decoder),
    )
    spec = replace(decoder, head=head)
    return DraftHead(spec, _sources(spec), "d2t" if head.draft_vocab_size is not None else None)


def _input_norm(config: Config) -> InputNorm | None:
    if config.flag("fc_norm", False):
        return "each"
    return "all" if config.flag("norm_before_fc", False) else None


def _sources(spec: DecoderSpec) -> dict[str, Source]:
    """The first layer's input_layernorm is of the embedding, its hidden_norm of the hidden state beside it."""
    assert spec.head is not None
    sources = named_head(spec)
    sources["head_embed_norm.weight"] = sources.pop("layers.0.attention_norm.weight")
    outside: Mapping[str, str] = {"fc": "fc", "head_hidden_norm": f"{_FIRST}hidden_norm"}
    if spec.head.input_norm == "all":
        outside = {**outside, "input_norm": "input_norm"}
    elif spec.head.input_norm == "each":
        outside = {**outside, **{f"fc_norm_{tap}": f"fc_norm.{tap}" for tap in range(len(spec.head.taps.layers))}}
    sources |= {f"{ours}.weight": Source(f"{theirs}.weight") for ours, theirs in outside.items()}
    return {ours: replace(source, alternatives=_others(source.name)) for ours, source in sources.items()}


def _others(name: str) -> tuple[str, ...]:
    """Other names of a tensor."""
    if name.startswith(_FIRST):
        return tuple(place + name.removeprefix(_FIRST) for place in _FIRST_NAMES)
    return (f"model.{name}",)


def is_eagle3(config: Mapping[str, Any], names: Collection[str]) -> bool:
    """Whether a checkpoint with such a config and tensors of these names is one."""
    stored = any(
        name.startswith(("midlayer.", "model.midlayer.")) or name.endswith("hidden_norm.weight") for name in names
    )
    return config.get("speculators_model_type") == "eagle3" or ("speculators_model_type" not in config and stored)
