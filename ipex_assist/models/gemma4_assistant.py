"""Gemma 4's assistants: a few layers of queries alone, which read keys and values of their target."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ipex_assist.models import gemma4_text
from ipex_assist.models.attention_spec import AttentionSpec
from ipex_assist.models.common import refuse
from ipex_assist.models.config import Config, ConfigError, NotComputed
from ipex_assist.models.draft_head import HeadSpec, Taps
from ipex_assist.models.head_common import DraftHead
from ipex_assist.models.spec import DecoderSpec, LayerSpec
from ipex_assist.models.weights import Source

MODEL_TYPES = ("gemma4_assistant", "gemma4_unified_assistant")


def is_gemma4_assistant(config: Mapping[str, Any]) -> bool:
    """Whether a checkpoint with such a config is one."""
    return config.get("model_type") in MODEL_TYPES


def gemma4_assistant_of(config: Config, target: DecoderSpec) -> DraftHead:
    """The head of a checkpoint with this config. Raises NotComputed and ConfigError.

    Its layers are Gemma 4's; how wide their heads are, the target's layers say. Logits have no cap.
    """
    text = {"hidden_size_per_layer_input": 0, **config.part("text_config"), "num_kv_shared_layers": 0}
    refuse(Config(text), hidden_size_per_layer_input=0, enable_moe_block=False)
    decoder = gemma4_text.spec(Config(text, gemma4_text.NAMES))
    width, taps = config.integer("backbone_hidden_size"), Taps((target.num_hidden_layers,), normed=True)
    count, read = _clusters(config, decoder)
    head = HeadSpec(
        *("shared_kv", taps, width), fed_back_normed=True, shared_head=False, clusters=count, clusters_read=read
    )
    spec = replace(
        decoder,
        model_type="gemma4_assistant",
        layers=tuple(_reading(layer, target) for layer in decoder.layers),
        max_position_embeddings=max(decoder.max_position_embeddings, target.max_position_embeddings),
        embedding_multiplier=target.embedding_multiplier,  # of the target's embedding
        logit_cap=None,
        tied_head=False,
        head=head,
    )
    sources = gemma4_text.weights(spec)
    tied = sources.pop("embed_tokens.weight").name
    sources["lm_head.weight"] = Source("lm_head.weight", alternatives=(tied,))
    sources |= {"fc_in.weight": Source("pre_projection.weight"), "fc_out.weight": Source("post_projection.weight")}
    if not head.clusters:
        return DraftHead(spec, sources)
    sources["clusters.weight"] = Source("masked_embedding.centroids.weight")
    return DraftHead(spec, sources, ordering="masked_embedding.token_ordering")


def _clusters(config: Config, decoder: DecoderSpec) -> tuple[int, int]:
    """How many, and how many a row reads. Raises ConfigError."""
    if not config.flag("use_ordered_embeddings", False):
        return 0, 0
    count, read = config.integer("num_centroids", 2048), config.integer("centroid_intermediate_top_k", 32)
    if count < 1 or decoder.vocab_size % count:
        raise ConfigError("num_centroids", count, f"a divisor of the {decoder.vocab_size:,} tokens")
    if not 1 <= read <= count:
        raise ConfigError("centroid_intermediate_top_k", read, f"from 1 to {count}")
    return count, read


def _reading(layer: LayerSpec, target: DecoderSpec) -> LayerSpec:
    """A layer that reads keys and values of the target's last layer of its kind that has its own.

    A window reaches from the last token that the target has read, and is of one more position than its size.
    """
    own, windowed = layer.attention, layer.attention.window is not None
    mixers = [(number, each.mixer) for number, each in enumerate(target.layers)]
    kept = [(number, each) for number, each in mixers if isinstance(each, AttentionSpec) and not each.shares_kv]
    found = [(number, each) for number, each in kept if (each.window is not None) == windowed]
    if not found:
        raise NotComputed(f"the model has no layers {'with' if windowed else 'without'} a window for it to read")
    number, read = found[-1]
    if (read.head_dim, own.heads % read.kv_heads) != (own.head_dim, 0):
        shared = f"{read.kv_heads} KV heads of {read.head_dim}"
        raise NotComputed(f"it has {own.heads} heads of {own.head_dim} values, and the model {shared}")
    window = None if own.window is None else own.window + 2
    without = replace(own, values_are_keys=False, value_norm=False)
    return replace(layer, mixer=replace(without, kv_layer=number, kv_heads=read.kv_heads, window=window))
