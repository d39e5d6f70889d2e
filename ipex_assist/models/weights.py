"""Our names of a decoder's weights: their shapes, and where a checkpoint keeps them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ipex_assist.env.errors import IpexAssistError
from ipex_assist.models.attention_spec import AttentionSpec
from ipex_assist.models.compressed_spec import CompressedSpec
from ipex_assist.models.mlp_spec import Experts, MlpSpec
from ipex_assist.models.recurrent_spec import NGRAM_TABLE
from ipex_assist.models.spec import DecoderSpec, LayerSpec

if TYPE_CHECKING:
    import torch


def check_stored(spec: DecoderSpec, sources: Mapping[str, Source], shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Raise IpexAssistError where a checkpoint of these shapes lacks a weight, or has one of another shape."""
    for name, wanted in resolve(sources, shapes).items():
        for ours in wanted:
            check_shape(spec, ours, _part_shape(shapes[name], sources[ours], head_dim_of(spec, ours)))


def _part_shape(shape: tuple[int, ...], source: Source, head_dim: int) -> tuple[int, ...]:
    """The shape that `part_of` a tensor has; the tensor's own where it cannot be cut into such parts."""
    if source.expert is not None:
        if len(shape) < 2 or source.expert >= shape[0]:
            return shape
        shape = shape[1:]
    part = shape[::-1] if source.is_transposed(shape) else shape
    if part and source.rows is not None:
        part = len(range(part[0])[slice(*source.rows)]), *part[1:]
    elif part and source.every is not None:
        first, step = source.every
        part = len(range(first, part[0], step)), *part[1:]
    elif part and source.interleaved is not None:
        first, last, parts = source.interleaved
        if part[0] % (parts * head_dim):
            return shape
        part = part[0] // parts * (last - first), *part[1:]
    if source.flat:
        part = (math.prod(part),)
    if source.pairs and (not part or part[0] % max(head_dim, source.pairs)):
        return shape
    if source.last_first and (not part or part[0] % head_dim):
        return shape
    if source.heads_transposed:
        rows = math.prod(part[:-1])
        if len(part) < 2 or rows % source.heads_transposed:
            return shape
        part = rows // source.heads_transposed * part[-1], source.heads_transposed
    return part


class NotFiniteError(IpexAssistError):
    """A weight that holds NaN or infinity: whatever were computed with it would be wrong, and might look right."""

    def __init__(self, name: str, where: str) -> None:
        """name: the tensor's, as the checkpoint has it. where: such as "NaN in row 3, column 7"."""
        super().__init__(
            f"{name} holds {where}, which is no weight: the file is damaged, or was saved so. Download it again; if it "
            "is the same then, use another checkpoint"
        )
        self.where = where


def check_numbers(name: str, tensor: torch.Tensor) -> None:
    """Raise NotFiniteError where a tensor holds NaN or infinity. Costs one reading of it."""
    import torch

    if not tensor.is_floating_point() or not tensor.numel():
        return
    # Least and largest value are NaN where any is; other float types lack this operator.
    known = tensor.dtype in (torch.float32, torch.bfloat16, torch.float16, torch.float64)
    if all(bool(torch.isfinite(end)) for end in torch.aminmax(tensor if known else tensor.float())):
        return
    place = (~torch.isfinite(tensor.float())).nonzero()[0].tolist()
    value = "NaN" if bool(tensor[tuple(place)].float().isnan()) else "infinity"
    where = f" in row {place[0]}" + (f", column {place[-1]}" if len(place) > 1 else "") if place else ""
    raise NotFiniteError(name, value + where)


def check_shape(spec: DecoderSpec, name: str, shape: tuple[int, ...]) -> None:
    """Raise IpexAssistError where one of our weights has another shape than the config asks for."""
    expected = weight_shape(spec, name)
    if shape != expected:
        raise IpexAssistError(
            f"{name} has the shape {shape} in the checkpoint and {expected} by config.json: they do not belong together"
        )


# Norms of whole rows, by our names; the first are those of experts that have their own.
EXPERT_NORMS = ("router_norm", "experts_norm", "experts_out_norm", "shared_out_norm")
NORMS = (
    *("final_norm", "embed_norm", "attention_norm", "attention_out_norm", "mlp_norm", "mlp_out_norm"),
    *("per_layer_out_norm", "laurel_out_norm", *EXPERT_NORMS),
)
# The four numbers of xIELU.
XIELU = ("alpha_p", "alpha_n", "xielu_beta", "xielu_eps")


CONV_BASES = ("attention_conv_base", "mlp_conv_base")  # of a DFlash 2 head: (2 · conv_kernel · hidden,)


# Matrices outside of layers that are linears, or that tokens are looked up in.
_OUTER = ("lm_head", "embed_tokens", "project_in", "project_out")


def may_be_linear(ours: str) -> bool:
    """Whether one of our weights is a matrix that may have a format of its own; a router is one in fp32."""
    *_, leaf, kind = ours.split(".")
    return kind == "weight" and (leaf.endswith("_proj") or ours.removesuffix(".weight") in _OUTER)


def layer_of(spec: DecoderSpec, name: str) -> LayerSpec | None:
    """The layer that one of our weights belongs to, such as "layers.0.q_proj.weight"; None outside of layers."""
    place, _, rest = name.partition(".")
    return spec.layers[int(rest.partition(".")[0])] if place == "layers" else None


def head_dim_of(spec: DecoderSpec, name: str) -> int:
    """The width of a head in the layer of one of our weights; 1 where heads have none that all matrices share."""
    layer = layer_of(spec, name)
    if layer is None or not isinstance(layer.mixer, AttentionSpec):
        return 1
    if layer.mixer.latent is not None:
        if ".index_" in name:
            return layer.mixer.latent.index_dim
        return layer.mixer.head_dim if isinstance(layer.mixer.latent, CompressedSpec) else 1
    return layer.mixer.head_dim


def weight_shape(spec: DecoderSpec, name: str) -> tuple[int, ...]:
    """The shape of one of our weights, such as "layers.0.q_proj.weight"."""
    *_, place, leaf, _kind = ("", *name.split("."))
    layer = layer_of(spec, name)
    if layer is None:
        shape = {**_outer_shapes(spec), **_head_shapes(spec)}[leaf]
    else:
        own = f"{NGRAM_TABLE}.{place}" if leaf == "rows" else leaf  # ngram_embed.3.rows
        of_expert = _expert_shapes(spec, layer, place)
        shape = of_expert[own] if own in of_expert else _known_shapes(spec, int(name.split(".", 2)[1]))[own]
        if leaf in ("q_proj", "k_proj", "v_proj") and (layer.aside or reads_both(spec, name)):
            shape = shape[0], 2 * spec.hidden_size
        if leaf == "attention_norm" and layer.aside:
            shape = (2 * spec.hidden_size,)
    if layer is not None and name.endswith("_conv.bias"):
        assert layer.recurrent is not None
        return (shape[0] // layer.recurrent.conv_kernel,)
    if name == "confidence.bias":
        return (1,)
    return shape[:1] if name.endswith(".bias") else shape


def _known_shapes(spec: DecoderSpec, number: int) -> dict[str, tuple[int, ...]]:
    """`layer_shapes`, kept with the spec as a cached property is: loading asks for each weight's more than once."""
    known: dict[int, dict[str, tuple[int, ...]]] = vars(spec).setdefault("known_shapes", {})
    if number not in known:
        known[number] = layer_shapes(spec, spec.layers[number])
    return known[number]


def _outer_shapes(spec: DecoderSpec) -> dict[str, tuple[int, ...]]:
    hidden = spec.hidden_size
    embedding = spec.embedding_size or hidden
    return {
        "embed_tokens": (spec.vocab_size, embedding),
        "embed_positions": (spec.max_position_embeddings + spec.position_offset, hidden),
        "project_in": (hidden, embedding),
        "project_out": (embedding, hidden),
        "lm_head": (spec.lm_head_rows, embedding),
        "per_layer_embed": (spec.per_layer_tokens, spec.num_hidden_layers * spec.per_layer_size),
        "per_layer_in_proj": (spec.num_hidden_layers * spec.per_layer_size, hidden),
        "per_layer_norm": (spec.per_layer_size,),
        **dict.fromkeys(NORMS, (hidden,)),
        "final_norm": (spec.norm_width,),
        **(spec.streams.head_shapes(hidden) if spec.streams is not None else {}),
        **(spec.altup.outer_shapes(hidden) if spec.altup is not None else {}),
    }


def reads_both(spec: DecoderSpec, name: str) -> bool:
    """Whether queries, keys and values of this layer are made of an embedding beside a hidden state (EAGLE-3)."""
    return spec.head is not None and spec.head.kind == "eagle3" and name.startswith("layers.0.")


def _head_shapes(spec: DecoderSpec) -> dict[str, tuple[int, ...]]:
    """Of what a draft head has beside a decoder."""
    head, hidden = spec.head, spec.hidden_size
    if head is None:
        return {}
    read, streams = head.input_size, spec.streams is not None
    fc = {"mtp": hidden if streams else 2 * hidden}.get(head.kind, read)
    return {
        "lm_head": (head.draft_vocab_size or spec.vocab_size, spec.embedding_size or hidden),
        "fc": (hidden, fc),
        "fc_token": (hidden, hidden),
        "fc_in": (hidden, 2 * head.target_hidden_size),
        "fc_out": (head.target_hidden_size, hidden),
        "clusters": (head.clusters, hidden),
        "selector_proj": (head.selector_rank, hidden),
        "selector_before": (spec.vocab_size, head.selector_rank),
        "selector_after": (head.draft_vocab_size or spec.vocab_size, head.selector_rank),
        "confidence": (head.confidence_size,),
        "head_embed_norm": (hidden,),
        "head_hidden_norm": (spec.norm_width,),
        "input_norm": (read,),
        **{f"fc_norm_{tap}": (head.target_hidden_size,) for tap in range(len(head.taps.layers))},
    }


def _conv_shapes(spec: DecoderSpec) -> dict[str, tuple[int, ...]]:
    """Of the convolutions of a draft head's layers."""
    head, hidden = spec.head, spec.hidden_size
    if head is None or not head.conv_kernel:
        return {}
    projections = dict.fromkeys(
        ("attention_conv_proj", "mlp_conv_proj"), (2 * head.conv_kernel * (hidden // head.conv_group), hidden)
    )
    return {**dict.fromkeys(CONV_BASES, (2 * head.conv_kernel * hidden,)), **projections}


def layer_shapes(spec: DecoderSpec, layer: LayerSpec) -> dict[str, tuple[int, ...]]:
    """Of all that such a layer has, by our names, without what is each expert's or the shared one's."""
    hidden, wide = spec.hidden_size, spec.norm_width
    if layer.reads_streams:
        return layer.mixer.shapes(hidden)
    return {
        **_norm_shapes(spec, layer),
        **layer.mixer.shapes(hidden),
        **(spec.streams.layer_shapes(hidden) if spec.streams is not None else {}),
        **(spec.altup.layer_shapes(hidden) if spec.altup is not None else {}),
        **_conv_shapes(spec),
        **({} if layer.experts is not None else _mlp_shapes(layer.each_mlp, hidden) if layer.mlp is not None else {}),
        **({} if layer.experts is None else _routing_shapes(spec, layer.experts)),
        **({"layer_scalar": (1,)} if layer.scaled else {}),
        **({"aside_proj": (hidden, hidden)} if layer.aside else {}),
        **_narrow_pair("mixer_gate_down_proj", "mixer_gate_up_proj", layer.mixer_gate_rank, wide),
        **_narrow_pair("mlp_gate_down_proj", "mlp_gate_up_proj", layer.mlp_gate_rank, wide),
        **_narrow_pair("laurel_left_proj", "laurel_right_proj", layer.laurel_rank, hidden),
        **_narrow_pair("per_layer_gate_proj", "per_layer_out_proj", spec.per_layer_size, hidden),
    }


def _narrow_pair(down: str, up: str, rank: int, hidden: int) -> dict[str, tuple[int, ...]]:
    return {down: (rank, hidden), up: (hidden, rank)} if rank else {}


def _norm_shapes(spec: DecoderSpec, layer: LayerSpec) -> dict[str, tuple[int, ...]]:
    """Of norms of whole rows."""
    first, mlp = layer.norm_place != "post", layer.mlp is not None
    has = {
        "attention_norm": first,
        "attention_out_norm": layer.has_mixer_out_norm,
        "mlp_norm": first and mlp and not layer.shared_norm,
        "mlp_out_norm": layer.has_mlp_out_norm,
        **dict.fromkeys(EXPERT_NORMS, layer.experts is not None and layer.experts.own_norms),
        "per_layer_out_norm": spec.per_layer_size > 0,
        "laurel_out_norm": layer.laurel_rank > 0,
    }
    wide = ("attention_norm", "mlp_norm")
    return {name: (spec.norm_width if name in wide else spec.hidden_size,) for name, there in has.items() if there}


def _mlp_shapes(mlp: MlpSpec, hidden: int) -> dict[str, tuple[int, ...]]:
    inner = mlp.intermediate_size
    return {
        **({"gate_proj": (inner, hidden)} if mlp.gated else {}),
        "up_proj": (inner, hidden),
        "down_proj": (hidden, inner),
        **(dict.fromkeys(XIELU, (1,)) if mlp.activation == "xielu" else {}),
    }


def _routing_shapes(spec: DecoderSpec, experts: Experts) -> dict[str, tuple[int, ...]]:
    return {
        "router": (experts.routed, spec.hidden_size),
        **({"correction_bias": (experts.routed,)} if experts.correction_bias else {}),
        **({"expert_scales": (experts.routed,)} if experts.expert_scales else {}),
        **({"expert_table": (spec.vocab_size * experts.per_token,)} if experts.by_token else {}),
        **({"shared_gate": (1, spec.hidden_size)} if experts.shared_gate else {}),
    }


def _expert_shapes(spec: DecoderSpec, layer: LayerSpec, place: str) -> dict[str, tuple[int, ...]]:
    """Of an expert's weights. place: the last name before the weight's own, "shared" of the shared expert."""
    if layer.experts is None:
        return {}
    return _mlp_shapes(layer.experts.shared if place == "shared" else layer.experts.each, spec.hidden_size)


def stored_form(sources: Mapping[str, Source], names: Iterable[str]) -> dict[str, Source]:
    """The sources with `otherwise` in the place of those of which a checkpoint of these names has none."""
    present = set(names)
    return {ours: _stored(source, present) for ours, source in sources.items()}


def _stored(source: Source, present: set[str]) -> Source:
    while source.otherwise is not None and present.isdisjoint((source.name, *source.alternatives)):
        source = source.otherwise
    return source


def resolve(sources: Mapping[str, Source], names: Iterable[str]) -> dict[str, list[str]]:
    """Our weight names by the checkpoint tensor that holds them; IpexAssistError names what is missing."""
    present = set(names)
    wanted: dict[str, list[str]] = {}
    missing = []
    for ours, source in sources.items():
        name = next((name for name in (source.name, *source.alternatives) if name in present), None)
        if name is None:
            missing.append(source.name)
        else:
            wanted.setdefault(name, []).append(ours)
    if missing:
        shown = ", ".join(missing[:3]) + (", …" if len(missing) > 3 else "")
        raise IpexAssistError(
            f"the checkpoint lacks {len(missing)} of {len(sources)} weights that its config asks for ({shown}). "
            "Is the download complete, and does config.json belong to these files?"
        )
    return wanted


def part_of(tensor: torch.Tensor, source: Source, head_dim: int) -> torch.Tensor:
    """One of our weights out of the checkpoint's tensor that holds it. RuntimeError where it cannot be cut so."""
    if source.expert is not None:
        tensor = tensor[source.expert]
    if source.is_transposed(tuple(tensor.shape)):
        tensor = tensor.t()
    tensor = rows_of(tensor, source, head_dim)
    if source.flat:
        tensor = tensor.reshape(-1)
    if source.last_first:
        tensor = tensor.reshape(-1, head_dim, *tensor.shape[1:]).roll(source.last_first, 1).flatten(0, 1)
    if source.pairs:
        width = max(head_dim, source.pairs)
        tensor = tensor.reshape(-1, width, *tensor.shape[1:])[:, _halves(source.pairs, width)].flatten(0, 1)
    if source.heads_transposed:
        tensor = tensor.reshape(-1, source.heads_transposed, tensor.shape[-1]).transpose(1, 2).flatten(0, 1)
    if source.plus or source.factor != 1:
        tensor = (tensor.float() + source.plus) * source.factor
    return tensor


def run_of(shape: tuple[int, ...], source: Source) -> tuple[int, tuple[int, ...]] | None:
    """Where `part_of` a tensor of this shape is one run of its elements as they are: the first's number, its shape.

    None where it is several runs, or their order or values change.
    """
    moved = source.every or source.interleaved or source.last_first or source.pairs or source.heads_transposed
    changed = moved or source.plus or source.factor != 1
    first = 0
    if source.expert is not None:
        if len(shape) < 2 or source.expert >= shape[0]:
            return None
        first, shape = source.expert * math.prod(shape[1:]), shape[1:]
    if changed or not shape or source.is_transposed(shape):
        return None
    if source.rows is not None:
        rows = range(shape[0])[slice(*source.rows)]
        first, shape = first + rows.start * math.prod(shape[1:]), (len(rows), *shape[1:])
    return first, (math.prod(shape),) if source.flat else shape


def rows_of(tensor: torch.Tensor, source: Source, head_dim: int) -> torch.Tensor:
    """The rows of a tensor that are a weight's."""
    if source.rows is not None:
        return tensor[slice(*source.rows)]
    if source.every is not None:
        first, step = source.every
        return tensor[first::step]
    if source.interleaved is not None:
        first, last, parts = source.interleaved
        per_group = tensor.reshape(-1, parts, head_dim, *tensor.shape[1:])
        return per_group[:, first:last].reshape(-1, *tensor.shape[1:])
    return tensor


def _halves(rotated: int, head_dim: int) -> list[int]:
    """The order of a head's rows in which the first `rotated` are rotated by halves instead of by pairs."""
    return [*range(0, rotated, 2), *range(1, rotated, 2), *range(rotated, head_dim)]


@dataclass(frozen=True)
class Product:
    """A matrix that a checkpoint has as base + up · down, each a tensor of this name."""

    base: str
    up: str
    down: str


@dataclass(frozen=True)
class Source:
    """Where a weight lies: a checkpoint tensor's name and, where that tensor holds several weights, which rows; and
    what is done to it on the way, in the order of the fields.

    `alternatives` are other names the same tensor goes by (older checkpoints leave out a prefix).
    """

    name: str
    expert: int | None = None  # of a tensor that holds all experts' (count, …)
    transposed: bool = False  # stored (in, out), as GPT-2's linears are …
    straight: tuple[int, int] | None = None  # … but for a matrix of this shape, as other programs write the same
    rows: tuple[int, int] | None = None
    every: tuple[int, int] | None = None  # row `first` and each `step`-th after it: parts that alternate (gpt-oss)
    # Heads first … last of every `parts` of them (GPTBigCode with multi_query=False, GPT-NeoX: (1, 2, 3) are keys).
    interleaved: tuple[int, int, int] | None = None
    flat: bool = False  # a matrix that is a vector here
    last_first: int = 0  # the last so many rows of each head come before the others
    pairs: int = 0  # this many rows of each head are rotated by pairs: put in the order of halves
    heads_transposed: int = 0  # this many rows, flat or as (heads, rows, …), are a head, which is transposed
    plus: float = 0.0
    factor: float = 1.0
    whole: bool = False  # whole numbers, stored as integers
    alternatives: tuple[str, ...] = ()
    otherwise: Source | None = None  # where a checkpoint without these names has it

    def is_transposed(self, shape: tuple[int, ...]) -> bool:
        """Whether a matrix that is stored in this shape has the columns of ours as its rows."""
        return self.transposed and len(shape) == 2 and shape != self.straight
