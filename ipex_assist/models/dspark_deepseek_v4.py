"""DSpark heads of DeepSeek-V4: stages that are layers of the target's kind, in its checkpoint or one of their own.

A block sees, in every layer, as many of the target's rows before it as the window has, and all of itself. The hidden
states are means of the target's residual streams. Markov and confidence head are those of other DSparks (dspark.py),
but that the confidence head reads what the final norm does, and has no bias.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from itertools import count, takewhile
from typing import Any

from ipex_assist.models import deepseek_v4
from ipex_assist.models.config import Config, NotComputed
from ipex_assist.models.draft_head import HeadSpec, Taps
from ipex_assist.models.head_common import DraftHead, under
from ipex_assist.models.names import STREAM_PARTS
from ipex_assist.models.spec import DecoderSpec, LayerSpec
from ipex_assist.models.stream_spec import HEAD_STREAMS
from ipex_assist.models.weights import Source

_ARCHITECTURE = "DeepseekV4DSparkModel"
_FIELDS = {"dspark_block_size", "dspark_noise_token_id", "dspark_target_layer_ids", "dspark_markov_rank"}
_CONFIDENCE = "confidence_head.proj"
_LONGEST = 256  # tokens of a block


def is_deepseek_v4_dspark(config: Mapping[str, Any]) -> bool:
    """Whether a checkpoint with such a config is one by itself, without a target."""
    return config.get("architectures") == [_ARCHITECTURE]


def deepseek_v4_dspark_of(values: Mapping[str, Any], names: Collection[str]) -> DraftHead | None:
    """The head of a checkpoint with this config and tensors of these names; None where there is none.

    A layer of `dspark_target_layer_ids` is the one whose output is read. Raises NotComputed and ConfigError.
    """
    config, present = Config(values, deepseek_v4.NAMES), frozenset(names)
    if "mtp.0.main_proj.weight" not in present:
        return None
    if others := sorted(name for name in values if name.startswith("dspark_") and name not in _FIELDS):
        raise NotComputed(f"DSpark whose config has {others[0]} is not supported")
    target = deepseek_v4.spec(config)
    stages = list(takewhile(lambda each: f"mtp.{each}.attn.wkv.weight" in present, count()))
    last = f"mtp.{len(stages) - 1}."
    if not stages or f"{last}{_CONFIDENCE}.bias" in present:
        raise NotComputed("DSpark without stages, or with a bias of its confidence head, is not supported")
    head = _head_of(config, target, present, last)
    spec = replace(
        target,
        layers=tuple(_stage(deepseek_v4.layer_after(config, number)) for number in stages),
        head=head,
        tied_head=False,
    )
    sources = under(deepseek_v4.weights(spec), lambda name: "mtp." + name.partition("layers.")[2])
    outside = {
        **{
            "fc": "mtp.0.main_proj.weight",
            "head_hidden_norm": "mtp.0.main_norm.weight",
            "final_norm": f"{last}norm.weight",
        },
        **{f"{HEAD_STREAMS}{ours}": f"{last}hc_head_{theirs}" for ours, theirs in STREAM_PARTS.items()},
    }
    if head.selector_rank:
        outside |= {f"selector_{ours}": f"{last}markov_head.{theirs}.weight" for ours, theirs in _MARKOV.items()}
    sources |= {f"{ours}.weight": Source(name) for ours, name in outside.items()}
    if head.confidence_size:
        sources["confidence.weight"] = Source(f"{last}{_CONFIDENCE}.weight", flat=True)
    return DraftHead(spec, sources)


_MARKOV = {"before": "markov_w1", "after": "markov_w2"}


def _stage(layer: LayerSpec) -> LayerSpec:
    """The layer, whose window is one of the target's rows alone: the first of a block's is behind it."""
    window = layer.attention.window
    return replace(layer, mixer=replace(layer.attention, window=None if window is None else window + 1))


def _head_of(config: Config, target: DecoderSpec, present: frozenset[str], last: str) -> HeadSpec:
    markov = f"{last}markov_head.markov_w1.weight" in present
    rank = config.integer("dspark_markov_rank") if markov else 0
    layers = tuple(each + 1 for each in config.integers("dspark_target_layer_ids"))
    block, noise = config.integer("dspark_block_size"), config.integer("dspark_noise_token_id")
    if not layers or min(layers) < 1 or (markov and rank < 1):
        raise NotComputed(f"DSpark with outputs of layers {[each - 1 for each in layers]}, and a rank of {rank}")
    if not 1 <= block < _LONGEST or not 0 <= noise < target.vocab_size:
        raise NotComputed(f"DSpark with blocks of {block} tokens and dspark_noise_token_id {noise}")
    return HeadSpec(
        "dflash",
        Taps(layers, streams="mean"),
        target.hidden_size,
        block_size=block + 1,
        from_anchor=True,
        mask_token=noise,
        selector_rank=rank,
        confidence_size=target.hidden_size + rank if f"{last}{_CONFIDENCE}.weight" in present else 0,
    )
