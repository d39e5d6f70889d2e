"""Layers inside a checkpoint that predict the token after the next one (MTP): one of them, used for every token."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from ipex_assist.models.config import Config
from ipex_assist.models.draft_head import HeadSpec, Taps
from ipex_assist.models.head_common import DraftHead, under
from ipex_assist.models.spec import DecoderSpec, LayerSpec
from ipex_assist.models.weights import Source

if TYPE_CHECKING:
    from ipex_assist.models import Architecture


@dataclass(frozen=True)
class _Layout:
    """Names in a checkpoint; {} stands for the number of the target's layers.

    layers: what the names of the layer's tensors begin with, which in the target's own are `first`.
    """

    layers: str
    fc: str
    embed_norm: str
    hidden_norm: str
    final_norm: str | None
    first: str = "layers.0."


_LAYER = "model.layers.{}."
_LAYOUTS = (
    _Layout("mtp.layers.0.", "mtp.fc", "mtp.pre_fc_norm_embedding", "mtp.pre_fc_norm_hidden", "mtp.norm"),
    _Layout(_LAYER, f"{_LAYER}eh_proj", f"{_LAYER}enorm", f"{_LAYER}hnorm", f"{_LAYER}shared_head.norm"),
    _Layout(
        *("model.mtp_block.0.", "model.mtp_linear_proj.0", "model.mtp_emb_norm.0", "model.mtp_hidden_norm.0", None)
    ),
    # As `speculators` saves one that it has trained.
    _Layout(
        *("mtp_layers.0.", "mtp_layers.0.input_proj", "mtp_layers.0.token_layernorm", "mtp_layers.0.hidden_layernorm"),
        "mtp_layers.0.final_layernorm",
    ),
    # Nemotron-H: the blocks of one layer of ours have numbers of their own.
    _Layout(
        *("mtp.layers.", "mtp.layers.0.eh_proj", "mtp.layers.0.enorm", "mtp.layers.0.hnorm"),
        *("mtp.layers.1.final_layernorm", "layers."),
    ),
)


def mtp_of(architecture: Architecture, config: Mapping[str, Any], names: Collection[str]) -> DraftHead | None:
    """The first such layer of a checkpoint with tensors of these names; None where it has none.

    It reads the target's last hidden states after the final norm, and its own the same way, as transformers does.
    Raises NotComputed for a layer that our decoder does not have.
    """
    target, present = architecture.spec(config), frozenset(names)
    count = target.num_hidden_layers
    places = ({each: getattr(layout, each).format(count) for each in ("layers", "fc")} for layout in _LAYOUTS)
    found = next((each for each in zip(_LAYOUTS, places, strict=True) if each[1]["fc"] + ".weight" in present), None)
    if found is None:
        return None
    layout, head = found[0], HeadSpec("mtp", Taps((count,), normed=True), target.hidden_size, fed_back_normed=True)
    layer = _layer(architecture, config, target)
    spec = replace(target, layers=(layer,), head=head, tied_head=False, final_norm=layout.final_norm is not None)
    stored = architecture.weights(spec)
    sources = under(stored, lambda name: layout.layers.format(count) + name.partition(layout.first)[2])
    norm, names_of = stored.get("final_norm.weight", Source("")), vars(layout)
    for ours, kind in {
        "head_embed_norm": "embed_norm",
        "head_hidden_norm": "hidden_norm",
        "final_norm": "final_norm",
    }.items():
        if names_of[kind] is not None:  # norms of a family weight alike, by w or by 1 + w
            sources[f"{ours}.weight"] = replace(norm, name=f"{names_of[kind].format(count)}.weight", alternatives=())
    return DraftHead(spec, {**sources, "fc.weight": Source(f"{found[1]['fc']}.weight")})


def _layer(architecture: Architecture, config: Mapping[str, Any], target: DecoderSpec) -> LayerSpec:
    """The layer: of the target's the last that is attention, but for families that say or do otherwise."""
    if architecture.model_type == "nemotron_h":
        kinds = dict.fromkeys(("layers_block_type", "layer_types"), config.get("mtp_layers_block_type"))
        pattern = Config(config).text("mtp_hybrid_override_pattern", "*E")
        return architecture.spec({**config, **kinds, "hybrid_override_pattern": pattern}).layers[0]
    if architecture.model_type == "ernie4_5_moe":  # dense
        return architecture.spec({**config, "num_hidden_layers": 1, "moe_layer_start_index": 1}).layers[0]
    if architecture.model_type == "exaone_moe":  # dense
        each = Config(config).optional_texts("mtp_layer_types") or ["full_attention"]
        changes = {"num_hidden_layers": 1, "layer_types": each[:1], "mlp_layer_types": ["dense"]}
        return architecture.spec({**config, **changes}).layers[0]
    return [layer for layer in target.layers if layer.recurrent is None][-1]
