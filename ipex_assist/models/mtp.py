"""Layers inside a checkpoint that predict further tokens (MTP): one for every token, or one for each of them."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from itertools import takewhile
from typing import TYPE_CHECKING, Any

from ipex_assist.models.common import text_part
from ipex_assist.models.config import Config
from ipex_assist.models.draft_head import HeadSpec, Taps
from ipex_assist.models.head_common import DraftHead, under
from ipex_assist.models.mtp_layouts import LAYOUTS, MtpLayout
from ipex_assist.models.names import STREAM_GATES, STREAM_PARTS
from ipex_assist.models.spec import DecoderSpec, LayerSpec
from ipex_assist.models.stream_spec import HEAD_GATE, HEAD_STREAMS
from ipex_assist.models.weights import Source

if TYPE_CHECKING:
    from ipex_assist.models import Architecture


def mtp_of(architecture: Architecture, config: Mapping[str, Any], names: Collection[str]) -> DraftHead | None:
    """The head of such layers in a checkpoint with tensors of these names; None where it has none.

    A single one drafts every token; of several with all that stands around them (DeepSeek-V3's form), each drafts one.
    It reads the target's last hidden states after the final norm, and its own the same way, as transformers does, but
    for layouts that say otherwise; or all residual streams of both before it, where a layout has a linear for them
    (`token`). A head of a target with several streams and no such linear has one stream. Of several layers those count
    that are there before one without its linear or a norm of it. Raises NotComputed for a layer that our decoder does
    not have.
    """
    target, present = architecture.spec(config), frozenset(names)
    count = target.num_hidden_layers
    known = [each for each in LAYOUTS if f"{each.fc.format(count, 0)}.weight" in present]
    whole = [each for each in known if f"{each.final_norm}.weight".format(count, 0) in present]
    layout = next(iter(whole + known), None)
    if layout is None or (layout.token is not None and target.streams is None):
        return None
    number = text_part(Config(config)).integer("num_nextn_predict_layers", len(present)) if "{" in layout.fc else 1
    parts = [f"{each}.weight" for each in (layout.fc, layout.embed_norm, layout.hidden_norm)]
    there = takewhile(
        lambda each: present.issuperset(part.format(count + each, each) for part in parts), range(1, number)
    )
    first, *further = (_head_of(architecture, config, target, layout, each) for each in (0, *there))
    return first._replace(further=tuple(further))


def _head_of(
    architecture: Architecture, config: Mapping[str, Any], target: DecoderSpec, layout: MtpLayout, number: int
) -> DraftHead:
    """That of one layer, the first of which has the number 0."""
    count = target.num_hidden_layers
    several = layout.token is not None  # residual streams, of which it reads all, before the final norm
    normed = not several and not layout.before_norm
    taps = Taps((count,), normed=normed, streams="all" if several else None)
    head = HeadSpec("mtp", taps, target.tap_width(taps), fed_back_normed=normed)
    layer = _layer(architecture, config, target, number)
    spec = replace(target, layers=(layer,), head=head, tied_head=False, final_norm=layout.final_norm is not None)
    spec = spec if several else replace(spec, streams=None)
    stored, places = architecture.weights(spec), (count + number, number)
    sources = under(stored, lambda name: layout.layers.format(*places) + layout.inside(name))
    norm, names_of = stored.get("final_norm.weight", Source("")), vars(layout)
    for ours, kind in {
        "head_embed_norm": "embed_norm",
        "head_hidden_norm": "hidden_norm",
        "final_norm": "final_norm",
    }.items():
        if names_of[kind] is not None:  # norms of a family weight alike, by w or by 1 + w
            sources[f"{ours}.weight"] = replace(norm, name=f"{names_of[kind].format(*places)}.weight", alternatives=())
    if layout.token is not None:
        sources["fc_token.weight"] = Source(f"{layout.token.format(*places)}.weight")
        parts = {f"{HEAD_STREAMS}{ours}": theirs for ours, theirs in STREAM_PARTS.items()}
        if target.gates_streams:
            parts = {ours: f"{theirs}.weight" for ours, theirs in zip(HEAD_GATE, STREAM_GATES, strict=True)}
        sources |= {f"{ours}.weight": Source(layout.head.format(*places) + theirs) for ours, theirs in parts.items()}
    return DraftHead(spec, {**sources, "fc.weight": Source(f"{layout.fc.format(*places)}.weight")})


def _layer(architecture: Architecture, config: Mapping[str, Any], target: DecoderSpec, number: int) -> LayerSpec:
    """The layer: of the target's the last that is attention, but for families that say otherwise."""
    if architecture.layer_after is not None:
        return architecture.layer_after(Config(config, architecture.names), number)
    layers = [layer for layer in target.layers if layer.recurrent is None]
    own = [each.attention for each in layers if not (each.attention.latent and each.attention.latent.shares_choice)]
    return replace(layers[-1], mixer=own[-1])
