"""What DSpark heads have beside DFlash's: a Markov head, a confidence head, and drafts from a block's first row on.

As deepseek-ai's DeepSpec publishes them (all of it at the top of the config, `architectures` ending in DSparkModel;
its DFlash heads are such ones without the two heads), and as `speculators` saves them (speculators_model_type
"dspark"). Both name the weights alike.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ipex_assist.models.common import refuse
from ipex_assist.models.config import Config, NotComputed
from ipex_assist.models.spec import DecoderSpec
from ipex_assist.models.weights import Source

_MARKOV, _CONFIDENCE = "markov_head.markov_w1.weight", "confidence_head.proj.weight"


# DeepSpec's names, those of `speculators` and SpecForge, and Liquid's. Layers are Qwen3's, of the first Gemma 4's.
GEMMA4 = "Gemma4DSparkModel"
_ARCHITECTURES = (
    *(GEMMA4, "Qwen3DSparkModel", "LingDSparkModel"),
    *("DSparkSpeculator", "DSparkDraftModel", "Lfm2DSparkDraftModel"),
)


def is_dspark(config: Mapping[str, Any]) -> bool:
    """Whether a DFlash head with such a config is one. Raises NotComputed for one with other layers than we know."""
    architectures = config.get("architectures")
    named = [each for each in architectures if "DSpark" in str(each)] if isinstance(architectures, list) else []
    if others := [each for each in named if each not in _ARCHITECTURES]:
        raise NotComputed(f"the DSpark head {others[0]} is not supported, only {', '.join(_ARCHITECTURES)}")
    return bool(named) or config.get("speculators_model_type") == "dspark"


def dspark_fields(config: Config, flat: Config, present: frozenset[str], decoder: DecoderSpec) -> dict[str, Any]:
    """Fields of a DSpark's HeadSpec, and those of any DFlash that its first row changes. Raises NotComputed.

    flat: the config with what DFlash's makers put in a part of their own.
    """
    ours, told = is_dspark(config.values), flat.optional_integer("markov_rank")
    anchor = flat.flag("sample_from_anchor", ours and not flat.flag("dspark_bonus_anchor", False))
    rank = flat.integer("markov_rank", 256 if ours and _MARKOV in present else 0)
    if told is None and not ours and _MARKOV in present:
        raise NotComputed("DSpark without markov_rank in its config")
    if rank < 0:
        raise NotComputed(f"DSpark with a Markov head of {rank} columns")
    if rank:
        refuse(flat, markov_head_type="vanilla")
    block = flat.integer("block_size") + anchor
    size = _confidence_size(flat, present, decoder, rank)
    return {"block_size": block, "from_anchor": anchor, "selector_rank": rank, "confidence_size": size}


def _confidence_size(flat: Config, present: frozenset[str], decoder: DecoderSpec, rank: int) -> int:
    if not flat.flag("enable_confidence_head", _CONFIDENCE in present):
        return 0
    with_markov = flat.flag("confidence_head_with_markov", True)
    if with_markov and not rank:
        raise NotComputed(
            "DSpark whose confidence head reads a Markov head's columns (confidence_head_with_markov), "
            "of which it has none (markov_rank 0)"
        )
    return decoder.hidden_size + (rank if with_markov else 0)


def dspark_names(spec: DecoderSpec) -> dict[str, Source]:
    """Where a checkpoint keeps the weights of these; none where the head has none."""
    assert spec.head is not None
    sources: dict[str, Source] = {}
    if spec.head.selector_rank and not spec.head.candidates:
        sources["selector_before.weight"] = Source(_MARKOV)
        sources["selector_after.weight"] = Source("markov_head.markov_w2.weight")
    if spec.head.confidence_size:
        sources["confidence.weight"] = Source(_CONFIDENCE, flat=True)
        sources["confidence.bias"] = Source("confidence_head.proj.bias")
    return sources
