"""DFlash and DSpark heads, which draft a block in one pass, as their makers and `speculators` publish them."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

from ipex_assist.models import gemma4_text
from ipex_assist.models.common import refuse
from ipex_assist.models.config import Config, NotComputed
from ipex_assist.models.dflash2 import dflash2_fields, dflash2_names
from ipex_assist.models.draft_head import HeadSpec, Taps
from ipex_assist.models.dspark import GEMMA4, dspark_fields, dspark_names, is_dspark
from ipex_assist.models.head_common import DraftHead
from ipex_assist.models.head_layers import gemma4_layers_of, in_halves, layers_of, named_head, vocabulary
from ipex_assist.models.spec import DecoderSpec
from ipex_assist.models.weights import Source


def is_dflash(config: Mapping[str, Any]) -> bool:
    """Whether a checkpoint with such a config is one."""
    if "speculators_model_type" in config:
        return config["speculators_model_type"] in ("dflash", "dflash2", "dspark")
    return isinstance(config.get("dflash_config"), dict) or {"target_layer_ids", "mask_token_id"} <= config.keys()


def dflash_of(config: Config, names: Collection[str], target: DecoderSpec) -> DraftHead:
    """The head of a checkpoint with this config and tensors of these names. Raises NotComputed and ConfigError.

    A layer of `dflash_config.target_layer_ids` is the one whose output is read.
    """
    flat = Config({**config.values, **config.part("dflash_config")})
    refuse(flat, is_causal=False, causal=False, output_multiplier=1.0)
    is_dspark(config.values)  # or refused, before its layers are taken for Qwen3's
    gemma4, present = config.values.get("architectures") == [GEMMA4], frozenset(names)
    if not gemma4:
        refuse(flat, final_logit_softcapping=None)
    decoder = gemma4_layers_of(config, target) if gemma4 else layers_of(config, "dflash", target)
    windowed = any(layer.attention.window is not None for layer in decoder.layers)
    if windowed and "speculators_model_type" in config.values:
        raise NotComputed("DFlash with windows that begin at a block's first token is not supported")
    layers = config.integers("aux_hidden_state_layer_ids") or tuple(i + 1 for i in flat.integers("target_layer_ids"))
    if not layers or min(layers) < 0:
        raise NotComputed(f"DFlash with hidden states of layers {list(layers)} is not supported")
    # Its embedding is the target's module, which multiplies in Gemma, unless `speculators` trained it.
    scaled = target.model_type.startswith("gemma") and "speculators_model_type" not in config.values
    head = HeadSpec(
        "dflash",
        Taps(layers),
        target_hidden_size=decoder.hidden_size,
        mask_token=flat.integer("mask_token_id"),
        **vocabulary(config, present, decoder),
        **(dspark_fields(config, flat, present, decoder) | dflash2_fields(config, flat, present, decoder)),
    )
    if not 2 <= head.block_size <= _LONGEST or not 0 <= head.mask_token < decoder.vocab_size:
        raise NotComputed(f"DFlash with blocks of {head.block_size} tokens and mask_token_id {head.mask_token}")
    multiplier = target.embedding_multiplier if scaled else 1.0
    spec = replace(decoder, head=head, embedding_multiplier=decoder.embedding_multiplier if gemma4 else multiplier)
    sources = named_head(spec, gemma4_text.weights(spec) if gemma4 else None)
    if gemma4:
        refuse(flat, rope_is_neox_style=True)
    elif not flat.flag("rope_is_neox_style", True):  # LFM2's
        sources = in_halves(spec, sources)
    sources["fc.weight"] = Source("fc.weight", alternatives=("encoder.fc.weight",))
    sources["head_hidden_norm.weight"] = Source("hidden_norm.weight", alternatives=("encoder.output_norm_enc.weight",))
    sources |= dflash2_names(spec) | dspark_names(spec)
    return DraftHead(spec, sources, "d2t" if head.draft_vocab_size is not None else None)


_LONGEST = 256  # tokens of a block
