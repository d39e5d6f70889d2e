"""What heads of the second kind of DFlash have beside the first: convolutions, and a choice among candidates.

Fields and names are those of speculators 0.9, and of the checkpoints that z-lab publishes.
"""

from __future__ import annotations

from typing import Any

from ipex_assist.models.config import Config, NotComputed
from ipex_assist.models.spec import DecoderSpec
from ipex_assist.models.weights import Source

_SELECTOR = {
    "before.weight": "predecessor_codebook",
    "after.weight": "successor_codebook",
    "proj.weight": "hidden_projection.weight",
}


def dflash2_fields(config: Config, flat: Config, present: frozenset[str], decoder: DecoderSpec) -> dict[str, Any]:
    """Fields of a DFlash 2's HeadSpec; none of one of the first kind. Raises NotComputed and ConfigError."""
    told = config.values.get("speculators_model_type") == "dflash2" or flat.values.get("conv_kernel_size")
    if not told:
        if any(name.startswith("candidate_selector.") for name in present):
            raise NotComputed("DFlash 2 without conv_kernel_size, selector_rank and selector_top_k in its config")
        return {}
    kernel, group = flat.integer("conv_kernel_size", 2), flat.integer("conv_group_size", 16)
    candidates, rank = flat.integer("selector_top_k", 16), flat.integer("selector_rank", 256)
    if min(kernel, group, candidates, rank) < 1 or decoder.hidden_size % group:
        raise NotComputed(
            f"DFlash 2 with convolutions over {kernel} rows, groups of {group} of {decoder.hidden_size} columns, and "
            f"{candidates} candidates by {rank} columns"
        )
    if flat.values.get("draft_vocab_size") not in (None, decoder.vocab_size):
        raise NotComputed("DFlash 2 with fewer tokens than its target is not supported")
    return {"conv_kernel": kernel, "conv_group": group, "candidates": candidates, "selector_rank": rank}


def dflash2_names(spec: DecoderSpec) -> dict[str, Source]:
    """Where a checkpoint keeps the weights of these; none where the head has none."""
    assert spec.head is not None
    if not spec.head.conv_kernel:
        return {}
    sources = {f"selector_{ours}": Source(f"candidate_selector.{theirs}") for ours, theirs in _SELECTOR.items()}
    for number in range(spec.num_hidden_layers):
        for part in ("attention_conv", "mlp_conv"):
            place = f"layers.{number}.{part}"
            sources[f"{place}_base.weight"] = Source(f"{place}.base_kernel", flat=True)
            sources[f"{place}_proj.weight"] = Source(f"{place}.kernel_projection.weight")
    return sources
