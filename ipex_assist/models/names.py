"""What the model files share of checkpoints' names: those of Llama, its relatives, and parts that lie in one tensor."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from ipex_assist.models.mlp_spec import Experts
from ipex_assist.models.recurrent_spec import RecurrentSpec
from ipex_assist.models.spec import DecoderSpec, LayerSpec
from ipex_assist.models.stream_spec import HEAD_STREAMS
from ipex_assist.models.weights import XIELU, Source, layer_shapes

# Our linears, norms and what is outside of layers, by Llama's names.
LLAMA_LINEARS = {
    "q_proj": "self_attn.q_proj",
    "k_proj": "self_attn.k_proj",
    "v_proj": "self_attn.v_proj",
    "o_proj": "self_attn.o_proj",
    "gate_proj": "mlp.gate_proj",
    "up_proj": "mlp.up_proj",
    "down_proj": "mlp.down_proj",
}
LLAMA_NORMS = {"attention_norm": "input_layernorm", "mlp_norm": "post_attention_layernorm"}
LLAMA_OUTSIDE = {"embed_tokens": "model.embed_tokens", "final_norm": "model.norm", "lm_head": "lm_head"}
HEAD_NORMS = {"q_norm": "self_attn.q_norm", "k_norm": "self_attn.k_norm"}

# What queries of heads, and of an indexer's, grow with (AttentionSpec.log_growth).
LOG_GROWTH = ("q_log_scale", "q_log_base")
INDEX_LOG_GROWTH = ("index_q_log_scale", "index_q_log_base")
# What is outside of layers for the embeddings of each of them.
PER_LAYER_OUTSIDE = ("per_layer_embed", "per_layer_in_proj", "per_layer_norm")
# The linears of gates of the norms before a mixer and an MLP.
MIXER_GATE = ("mixer_gate_down_proj", "mixer_gate_up_proj")
MLP_GATE = ("mlp_gate_down_proj", "mlp_gate_up_proj")
MLP = ("gate_proj", "up_proj", "down_proj")
# Ours that are no linears or norms but tensors of their own: a checkpoint's names of them do not end in ".weight".
_OF_EXPERTS = ("correction_bias", "expert_scales", "expert_table")
_TENSORS = (*_OF_EXPERTS, "layer_scalar", "router_norm", "altup_scale", "index_gate_proj", *XIELU)
# Of shared experts where they are several, as wide as all of them together (DeepSeek's names).
SHARED_EXPERTS = {leaf: f"mlp.shared_experts.{leaf}" for leaf in MLP}


@dataclass(frozen=True)
class ExpertNames:
    """What a checkpoint calls a layer's router and experts, and by default Qwen's names of them.

    In a linear's name {} stands for an expert's number; without it all experts' lie in one tensor, (experts, …).
    together: where transformers 5 has them when it is asked for its own format, gate and up in one tensor; so are those
    of a shared expert where both have the same name.
    """

    router: tuple[str, ...] = ("mlp.gate",)
    linears: Mapping[str, str] = field(default_factory=lambda: {leaf: f"mlp.experts.{{}}.{leaf}" for leaf in MLP})
    shared: Mapping[str, str] = field(default_factory=lambda: {leaf: f"mlp.shared_expert.{leaf}" for leaf in MLP})
    shared_gate: str = "mlp.shared_expert_gate"
    correction_bias: tuple[str, ...] = ("mlp.gate.e_score_correction_bias",)  # stored as (experts,) or (1, experts)
    table: str = "mlp.gate.tid2eid"  # (vocabulary, experts of a token)
    together: str = "mlp.experts"

    def leaves(self, experts: Experts, place: str) -> Iterator[tuple[str, str, dict[str, Any]]]:
        """Our name of each within a layer, the checkpoint's, and what fields its Source has besides.

        place: what the names of the layer's tensors begin with.
        """
        size = experts.intermediate_size
        rows = {"gate_proj": (0, size), "up_proj": (size, 2 * size) if experts.gated else None, "down_proj": None}
        up = ".gate_up_proj" if experts.gated else ".up_proj"
        yield "router", self.router[0], {"alternatives": tuple(f"{place}{name}.weight" for name in self.router[1:])}
        if experts.correction_bias:
            others = tuple(place + name for name in self.correction_bias[1:])
            yield "correction_bias", self.correction_bias[0], {"flat": True, "alternatives": others}
        if experts.by_token:
            yield "expert_table", self.table, {"flat": True, "whole": True}
        for expert in range(experts.count):
            for leaf, name in self.linears.items():
                tensor = place + self.together + (".down_proj" if leaf == "down_proj" else up)
                more = {"otherwise": Source(tensor, expert, rows=rows[leaf])}
                apart = Source(f"{place}{self.together}.{expert}.{leaf}.weight")  # as GGUF files are read
                one = {"expert": expert, "alternatives": (tensor,), "otherwise": apart}
                yield f"experts.{expert}.{leaf}", name.format(expert), more if "{}" in name else one
        if experts.shared_size:
            together = self.shared.get("gate_proj") == self.shared["up_proj"]
            parts = stacked(dict.fromkeys(("gate_proj", "up_proj"), experts.shared_size)) if together else {}
            for leaf, name in self.shared.items():
                yield f"shared.{leaf}", name, parts.get(leaf, {})
            if experts.shared_gate:
                yield "shared_gate", self.shared_gate, {}


Fields = Mapping[str, Mapping[str, Any]]


def named(
    spec: DecoderSpec,
    *,
    prefix: str = "model.",
    layers: str = "model.layers.",
    linears: Mapping[str, str] = LLAMA_LINEARS,
    norms: Mapping[str, str] = LLAMA_NORMS,
    outside: Mapping[str, str] = LLAMA_OUTSIDE,
    fields: Fields | None = None,
    experts: ExpertNames | None = None,
    recurrent: Mapping[str, str] | None = None,
) -> dict[str, Source]:
    """Where a checkpoint keeps every weight of a spec, by what it calls our linears and norms.

    prefix: what checkpoints saved from the bare model lack. fields: of `Source`, by our name of a linear or norm.
    experts: their names, where the spec has any. recurrent: of the weights of recurrent mixers, by our names; those
    of vectors are whole names, without ".weight".
    """
    found = _Sources(spec, prefix, fields or {})
    absent = {"lm_head"} if spec.tied_head else set()
    absent |= set() if spec.final_norm else {"final_norm"}
    absent |= set() if spec.per_layer_size else set(PER_LAYER_OUTSIDE)
    for leaf, name in outside.items():
        if leaf not in absent:
            found.add(leaf, name, leaf, leaf == "lm_head" and spec.head_bias)
    if spec.tied_head and spec.head is None:  # the one matrix may be stored by either name
        table = found.sources["embed_tokens.weight"]
        names = *table.alternatives, outside["lm_head"] + ".weight"
        found.sources["embed_tokens.weight"] = replace(table, alternatives=names)
    for number, layer in enumerate(spec.layers):
        own, of_mixer, biased = layer_shapes(spec, layer), layer.mixer.shapes(spec.hidden_size), _biased(layer)
        ours, theirs = f"layers.{number}.", f"{layers}{number}."
        for leaf, name in {**norms, **linears}.items():
            if leaf in own:
                found.add(ours + leaf, theirs + name, leaf, leaf in biased, own=of_mixer.get(leaf, ()))
        if layer.recurrent is not None:
            assert recurrent is not None, "a recurrent mixer without names"
            found.add_recurrent(
                layer.recurrent, ours, {leaf: theirs + name for leaf, name in recurrent.items()}, biased
            )
        if layer.experts is not None:
            assert experts is not None, "experts without names"
            for leaf, name, more in experts.leaves(layer.experts, theirs):
                kind = leaf.rpartition(".")[2]
                found.add(ours + leaf, theirs + name, kind, kind in biased, **more)
    return found.sources


class _Sources:
    """Collects where a checkpoint keeps the parts of a spec's weights. prefix, fields: of `named`."""

    def __init__(self, spec: DecoderSpec, prefix: str, fields: Fields) -> None:
        self.sources: dict[str, Source] = {}
        self._prefix, self._fields = prefix, fields
        self._norm_parts = [".weight"] * spec.norm_affine + [".bias"] * spec.norms_biased

    def add(self, ours: str, theirs: str, leaf: str, biased: bool, own: tuple[int, ...] = (), **more: Any) -> None:
        """All parts of one linear or norm: `leaf` is our name of its kind. own: its shape, if it is a mixer's."""
        norm = leaf.endswith("norm") and not own
        whole = leaf in _TENSORS or (len(own) == 1 and not leaf.endswith("norm"))
        for part in self._norm_parts if norm else [".weight", ".bias"] if biased else [".weight"]:
            name = theirs if whole else theirs + part
            others = (name.removeprefix(self._prefix),) if self._prefix else ()
            given = {**self._fields.get(leaf, {}), **more}
            fields = {"alternatives": others, **given, **({"plus": 0.0} if part == ".bias" else {})}
            self.sources[ours + part] = Source(name, **fields)

    def add_recurrent(self, mixer: RecurrentSpec, ours: str, theirs: Mapping[str, str], biased: Container[str]) -> None:
        """The weights of a recurrent mixer, whose whole names are `theirs`."""
        for leaf in (*mixer.all_parts, "mixer_out"):
            self.add(ours + leaf, theirs[leaf], leaf, leaf in biased)
        for leaf in mixer.vectors:
            self.sources[f"{ours}{leaf}.weight"] = Source(theirs[leaf], **self._fields.get(leaf, {}))
        if mixer.conv_bias:
            for leaf in mixer.vectors:
                if leaf.endswith("_conv"):
                    name = theirs[leaf].removesuffix("weight") + "bias"
                    self.sources[f"{ours}{leaf}.bias"] = Source(name, rows=self._fields.get(leaf, {}).get("rows"))


STREAM_PARTS = {"": "fn", "_base": "base", "_scale": "scale"}  # by what our names end with, what theirs do
STREAM_GATES = ("input_mix_weight_down", "input_mix_weight_up")  # of gated residuals, in their order


def streams(spec: DecoderSpec, names: Mapping[str, Sequence[str]]) -> dict[str, Source]:
    """What weighs several residual streams. names: by ours, what their tensors may be called, with {} for the part."""
    made: dict[str, Source] = {}
    for ours, theirs in names.items() if spec.streams is not None else ():
        for leaf, part in STREAM_PARTS.items():
            for place in ("",) if ours == HEAD_STREAMS else (f"layers.{i}." for i in range(spec.num_hidden_layers)):
                first, *others = (f"{start}{place}{name.format(part)}" for start in ("model.", "") for name in theirs)
                made[f"{place}{ours}{leaf}.weight"] = Source(first, alternatives=tuple(others))
    return made


def _biased(layer: LayerSpec) -> set[str]:
    """Our names of a layer's linears that have a bias."""
    experts, biased = layer.experts, layer.mixer.biased
    biased |= set(MLP) if layer.mlp is not None and layer.mlp.bias else set()
    return biased | ({"router"} if experts is not None and experts.router_bias else set())


def llama_weights(spec: DecoderSpec) -> dict[str, Source]:
    """Checkpoint names of every weight of a Llama-like model."""
    return named(spec, norms={**LLAMA_NORMS, **HEAD_NORMS})


def inside(sources: Mapping[str, Source]) -> dict[str, Source]:
    """The sources of a text model that is a part of a larger one, by all names that there are for that part.

    transformers has two; some checkpoints call it as if it were the whole.

    Where the head is no tensor of its own, whatever the config says, it is the embedding.
    """
    made = {ours: _inside(source) for ours, source in sources.items()}
    if "lm_head.weight" in made:
        made["lm_head.weight"] = replace(made["lm_head.weight"], otherwise=made["embed_tokens.weight"])
    return made


def _inside(source: Source) -> Source:
    known = [name for name in (source.name, *source.alternatives) if name.startswith(("model.", "lm_head"))]
    names = [f"model.language_{name}" if name.startswith("model.") else name for name in known]
    names += [f"language_model.{name}" for name in known] + known
    otherwise = None if source.otherwise is None else _inside(source.otherwise)
    return replace(source, name=names[0], alternatives=tuple(dict.fromkeys(names[1:])), otherwise=otherwise)


def stacked(sizes: Mapping[str, int]) -> dict[str, dict[str, Any]]:
    """Fields of parts that are stacked in one tensor, in this order, by their rows."""
    found, start = {}, 0
    for leaf, size in sizes.items():
        found[leaf] = {"rows": (start, start + size)}
        start += size
    return found


def transposed_experts(
    spec: DecoderSpec, sources: Mapping[str, Source], *, by_shape: bool = False
) -> dict[str, Source]:
    """These sources, where all experts' matrices of a layer lie in two tensors (experts, in, out), gate before up.

    by_shape: or (experts, out, in), where they have that shape, as transformers 5 writes them.
    """
    made = dict(sources)
    for ours, source in sources.items():
        if source.expert is not None:
            size = spec.layers[int(ours.split(".")[1])].inner_size
            rows = {"gate_proj": (0, size), "up_proj": (size, 2 * size)}.get(ours.split(".")[-2])
            shape = (spec.hidden_size, size) if rows is None else (2 * size, spec.hidden_size)
            straight = shape if by_shape and shape[0] != shape[1] else None
            made[ours] = replace(source, transposed=True, straight=straight, rows=rows)
    return made


def stacked_qkv(spec: DecoderSpec) -> dict[str, dict[str, Any]]:
    """Query, key and value in one tensor, in this order, of layers that are alike."""
    attention = spec.layers[0].attention
    return stacked({"q_proj": attention.query_size, "k_proj": attention.key_size, "v_proj": attention.value_size})


def stacked_gate_up(spec: DecoderSpec) -> dict[str, dict[str, Any]]:
    """Gate and up in one tensor, in this order, of layers that are alike."""
    size = spec.layers[0].each_mlp.intermediate_size
    return stacked({"gate_proj": size, "up_proj": size})


def rotated_by_pairs(spec: DecoderSpec) -> dict[str, dict[str, Any]]:
    """Query and key whose neighbouring values are rotated against each other, of layers that are alike."""
    return {leaf: {"pairs": spec.layers[0].attention.rotary_size} for leaf in ("q_proj", "k_proj")}


def interleaved_qkv(group: int = 1) -> dict[str, dict[str, Any]]:
    """One tensor that has for each key/value head its `group` queries, the key, the value."""
    parts = group + 2
    ends = {"q_proj": (0, group, parts), "k_proj": (group, group + 1, parts), "v_proj": (group + 1, parts, parts)}
    return {leaf: {"interleaved": part} for leaf, part in ends.items()}


def gated_queries() -> dict[str, dict[str, Any]]:
    """One tensor that has for each head its query, then the gate of its output."""
    return {"q_proj": {"interleaved": (0, 1, 2)}, "g_proj": {"interleaved": (1, 2, 2)}}


def renamed(source: Source, names: Callable[[str], list[str]]) -> Source:
    """The source by other names: the first that `names` makes of each is it, the others are alternatives."""
    found = list(dict.fromkeys(name for each in (source.name, *source.alternatives) for name in names(each)))
    otherwise = None if source.otherwise is None else renamed(source.otherwise, names)
    return replace(source, name=found[0], alternatives=tuple(found[1:]), otherwise=otherwise)


def also_named(sources: Mapping[str, Source], parts: Mapping[str, str]) -> dict[str, Source]:
    """The sources by names in which these parts are others, replaced in this order, and by their own."""

    def names(name: str) -> list[str]:
        other = name
        for part, its_name in parts.items():
            other = other.replace(part, its_name, 1)
        return [other, name]

    return {ours: renamed(source, names) for ours, source in sources.items()}


def sinks(spec: DecoderSpec) -> dict[str, Source]:
    """Those of query heads, which are tensors of their own: "….self_attn.sinks"."""
    made = {}
    for number, layer in enumerate(spec.layers):
        if layer.recurrent is None and layer.attention.sinks:
            name = f"layers.{number}.self_attn.sinks"
            made[f"layers.{number}.sinks.weight"] = Source(f"model.{name}", alternatives=(name, f"model.{name}.weight"))
    return made


def renumbered(sources: Mapping[str, Source], block: Callable[[int, str], int]) -> dict[str, Source]:
    """The sources of a checkpoint that counts otherwise than we do.

    block: our number of a layer, and our name of a weight in it ("mlp_norm") → the number in the checkpoint.
    """
    made = {}
    for ours, source in sources.items():
        place, _, rest = ours.partition(".")
        if place == "layers":
            number, leaf = rest.split(".")[:2]
            there = f"layers.{block(int(number), leaf)}."
            source = renamed(source, partial(_moved, f"layers.{number}.", there))
        made[ours] = source
    return made


def _moved(here: str, there: str, name: str) -> list[str]:
    return [name.replace(here, there, 1)]


def merged(*fields: Fields) -> dict[str, dict[str, Any]]:
    """All of these together."""
    names = {name for each in fields for name in each}
    return {name: {key: value for each in fields for key, value in each.get(name, {}).items()} for name in names}
