"""The layers of heads in checkpoints of their own: Llama's or Qwen3's, and what the target shares with them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ipex_assist.models import gemma4_text
from ipex_assist.models.common import FULL, SLIDING, layer_kinds, llama_like, refuse, windows
from ipex_assist.models.config import Config, NotComputed
from ipex_assist.models.names import HEAD_NORMS, LLAMA_NORMS, named
from ipex_assist.models.spec import DecoderSpec
from ipex_assist.models.weights import Source

_OUTSIDE = {"embed_tokens": "embed_tokens", "final_norm": "norm", "lm_head": "lm_head"}


def layers_of(config: Config, kind: str, target: DecoderSpec) -> DecoderSpec:
    """The layers of a head's config, or of its transformer_layer_config: Llama's, or Qwen3's with norms of heads.

    Sequences are as long as the target's, whatever the config says.
    """
    own = config.part("transformer_layer_config") or config.values
    layers = Config({"vocab_size": target.vocab_size, **own}, {"norm_eps": "rms_norm_eps"})
    normed = kind == "dflash" or layers.text("model_type", "llama") == "qwen3"
    further = 1 if kind == "dflash" else 0  # transformers counts how far back a row of a block sees, without itself
    bias, kinds = layers.flag("attention_bias", False), layer_kinds(layers, lambda layer: False)
    reach = max(layers.integer("max_position_embeddings", 2048), target.max_position_embeddings)
    return llama_like(
        kind,
        layers,
        **({"head_dim": layers.integer("head_dim", 128)} if normed else {}),
        qk_norm="head" if normed else None,
        qkv_bias=bias,
        output_bias=bias,
        mlp_bias=layers.flag("mlp_bias", False),
        sliding_windows=tuple(each and each + further for each in windows(layers, kinds)) if SLIDING in kinds else (),
        max_position_embeddings=reach,
        tied_head=False,
    )


def gemma4_layers_of(config: Config, target: DecoderSpec) -> DecoderSpec:
    """The layers of a head's config that are Gemma 4's, of those that see everything; each has its own keys."""
    own = {**config.values, "num_kv_shared_layers": 0}
    own.pop("per_layer_config", None)  # of the target's layers
    refuse(
        Config(own),
        **{"layer_types": [FULL] * config.integer("num_hidden_layers"), "hidden_size_per_layer_input": 0},
        **{"enable_moe_block": False, "use_double_wide_mlp": False},
    )
    reach = max(config.integer("max_position_embeddings", 131072), target.max_position_embeddings)
    decoder = gemma4_text.spec(Config(own, gemma4_text.NAMES))
    return replace(decoder, model_type="dflash", max_position_embeddings=reach, tied_head=False)


def vocabulary(config: Config, present: frozenset[str], decoder: DecoderSpec) -> dict[str, Any]:
    """Fields of a HeadSpec that say whose embedding and lm_head it has. Raises NotComputed."""
    rows = config.optional_integer("draft_vocab_size") or decoder.vocab_size
    fewer = rows if rows != decoder.vocab_size else None
    shared = [present.isdisjoint((f"{name}.weight", f"model.{name}.weight")) for name in ("embed_tokens", "lm_head")]
    if fewer is not None and (shared[1] or "d2t" not in present):
        raise NotComputed(f"a vocabulary of {rows:,} of {decoder.vocab_size:,} tokens, without lm_head or d2t")
    return {"draft_vocab_size": fewer, "shared_embedding": shared[0], "shared_head": shared[1]}


def named_head(spec: DecoderSpec, sources: dict[str, Source] | None = None) -> dict[str, Source]:
    """Where a head's checkpoint keeps its layers, the final norm, and what it does not share with its target.

    sources: of all these; None: by the names of Llama's and Qwen3's.
    """
    assert spec.head is not None
    if sources is None:
        sources = named(spec, prefix="", layers="layers.", norms={**LLAMA_NORMS, **HEAD_NORMS}, outside=_OUTSIDE)
    shared = {"embed_tokens.weight": spec.head.shared_embedding, "lm_head.weight": spec.head.shared_head}
    return {ours: source for ours, source in sources.items() if not shared.get(ours, False)}


def in_halves(spec: DecoderSpec, sources: dict[str, Source]) -> dict[str, Source]:
    """The sources of queries, keys and their norms, whose heads a checkpoint rotates by pairs of neighbours."""
    rotated = spec.layers[0].attention.rotary_size
    pairs = {ours for ours in sources if ours.rsplit(".", 2)[-2] in ("q_proj", "k_proj", "q_norm", "k_norm")}
    return {ours: replace(source, pairs=rotated) if ours in pairs else source for ours, source in sources.items()}
