"""What the files of draft heads share: a head's spec beside where its weights are, and the names of its own layers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from ipex_assist.models.common import SLIDING, layer_kinds, llama_like, windows
from ipex_assist.models.config import Config, NotComputed
from ipex_assist.models.names import HEAD_NORMS, LLAMA_NORMS, named, renamed
from ipex_assist.models.spec import DecoderSpec
from ipex_assist.models.weights import Source

EMBEDDING, HEAD = "embed_tokens.weight", "lm_head.weight"


class DraftHead(NamedTuple):
    """A draft head: its DecoderSpec, whose `head` is not None, and where a checkpoint has each of its weights.

    Without those that it shares with its target. tokens: the name of the tensor that says which tokens of the target
    the rows of its lm_head are, as differences from their own numbers; None where they are all of them, in order.
    """

    spec: DecoderSpec
    sources: dict[str, Source]
    tokens: str | None = None


def under(sources: Mapping[str, Source], rename: Callable[[str], str]) -> dict[str, Source]:
    """The sources of layers, by other names."""
    inside = {ours: source for ours, source in sources.items() if ours.startswith("layers.")}
    return {ours: renamed(source, lambda name: [rename(name)]) for ours, source in inside.items()}


def check_target(head: DecoderSpec, target: DecoderSpec) -> None:
    """Raise NotComputed where a head was made for a target of another width, vocabulary or number of layers."""
    assert head.head is not None
    compared = (
        ("hidden states of {} values", head.head.target_hidden_size, target.hidden_size),
        ("a vocabulary of {:,} tokens", head.vocab_size, target.vocab_size),
    )
    for what, wanted, found in compared:
        if wanted != found:
            raise NotComputed(f"it was made for a model with {what.format(wanted)}, and this one has {found:,}")
    if (last := max(head.head.taps.layers)) > target.num_hidden_layers:
        raise NotComputed(f"it reads hidden states of layer {last}, and the model has {target.num_hidden_layers}")


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


def vocabulary(config: Config, present: frozenset[str], decoder: DecoderSpec) -> dict[str, Any]:
    """Fields of a HeadSpec that say whose embedding and lm_head it has. Raises NotComputed."""
    rows = config.optional_integer("draft_vocab_size") or decoder.vocab_size
    fewer = rows if rows != decoder.vocab_size else None
    shared = [present.isdisjoint((f"{name}.weight", f"model.{name}.weight")) for name in ("embed_tokens", "lm_head")]
    if fewer is not None and (shared[1] or "d2t" not in present):
        raise NotComputed(f"a vocabulary of {rows:,} of {decoder.vocab_size:,} tokens, without lm_head or d2t")
    return {"draft_vocab_size": fewer, "shared_embedding": shared[0], "shared_head": shared[1]}


def named_head(spec: DecoderSpec) -> dict[str, Source]:
    """Where a head's checkpoint keeps its layers, the final norm, and what it does not share with its target."""
    assert spec.head is not None
    sources = named(spec, prefix="", layers="layers.", norms={**LLAMA_NORMS, **HEAD_NORMS}, outside=_OUTSIDE)
    shared = {EMBEDDING: spec.head.shared_embedding, HEAD: spec.head.shared_head}
    return {ours: source for ours, source in sources.items() if not shared.get(ours, False)}
