"""Packs a checkpoint's tensors one at a time, so that there are never two copies of a model in memory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import torch
from torch.nn import functional

from ipex_assist.executors.torch.altup import AltUpLayer, altup_layer
from ipex_assist.executors.torch.compressed_layer import CompressedLayer, compressed_layer
from ipex_assist.executors.torch.dynamic_conv import DynamicConv
from ipex_assist.executors.torch.experts import ExpertLayer, Mlp, expert_table
from ipex_assist.executors.torch.kernels import Kernels, Linear, TorchKernels
from ipex_assist.executors.torch.ngram_table import ngram_table
from ipex_assist.executors.torch.selector import Confidence, Selector
from ipex_assist.executors.torch.streams import StreamLayer, stream_layer
from ipex_assist.models import Source
from ipex_assist.models.draft_head import HeadSpec
from ipex_assist.models.mlp_spec import Experts
from ipex_assist.models.spec import DecoderSpec, LayerSpec
from ipex_assist.models.stream_spec import ALTUP_VECTORS, HEAD_STREAMS, STREAMS
from ipex_assist.models.weights import (
    CONV_BASES,
    EXPERT_NORMS,
    XIELU,
    check_numbers,
    check_shape,
    head_dim_of,
    layer_of,
    part_of,
    resolve,
)

Norm = tuple[torch.Tensor | None, torch.Tensor | None]  # weight and bias, each (hidden,)
LogGrowth = tuple[torch.Tensor, torch.Tensor]  # (heads,) each: what queries grow with by positions, and their base


@dataclass
class IndexerLayer:
    """What an indexer of sparse attention has."""

    inputs: Linear  # (rows, hidden) → its key, gates of that where pools have one, and the weights of its heads
    query: Linear  # (rows, query_rank) → (rows, heads · dim)
    norm: Norm  # a layer norm, of the key
    query_norm: Norm | None = None  # another, of the layer's input, where queries are made of that
    growth: LogGrowth | None = None
    places: torch.Tensor | None = None  # (pool · dim,)


@dataclass
class LatentLayer:
    """Latent attention between `qkv`, which makes the query's row, the rotary key and the latent, and `o_proj`."""

    query: Linear  # what of the queries is not rotated, of all heads, then what is
    keys: list[Linear]  # of each head: (rows, nope_dim) → (rows, rank)
    values: list[Linear]  # of each head: (rows, rank) → (rows, value_dim)
    norm: torch.Tensor | None  # of the latent; None where that is another layer's
    query_norm: torch.Tensor | None = None
    indexer: IndexerLayer | None = None


@dataclass
class PerLayerLinears:
    """What a layer makes of its own embedding of each token, after its MLP."""

    gate: Linear  # (rows, hidden) → (rows, per_layer_size)
    out: Linear  # and back
    norm: Norm


@dataclass
class LaurelLayer:
    """What is beside attention: two linears, and the norm of what they give."""

    left: Linear  # (rows, hidden) → (rows, laurel_rank)
    right: Linear  # and back
    norm: Norm


@dataclass
class Layer:
    """One layer. Query, key, value and output gate are one linear, stacked in this order; so are gate and up."""

    qkv: Linear
    o_proj: Linear
    mlp: Mlp | ExpertLayer | None
    attention_norm: Norm
    attention_out_norm: Norm
    mlp_norm: Norm
    mlp_out_norm: Norm
    q_norm: torch.Tensor | None = None
    k_norm: torch.Tensor | None = None
    sinks: torch.Tensor | None = None  # (heads,)
    growth: LogGrowth | None = None
    xielu: tuple[torch.Tensor, ...] = ()  # its four numbers in the order of XIELU, in fp32
    # Of its mixer, beside `qkv` and `o_proj`: linears by our names, and by those of the mixer's `stacked`; and weights
    # that are no matrices, "a_log.weight".
    linears: dict[str, Linear] = field(default_factory=dict)
    vectors: dict[str, torch.Tensor] = field(default_factory=dict)
    ngram_table: torch.Tensor | None = None  # (rows, columns of a hash)
    latent: LatentLayer | None = None
    compressed: CompressedLayer | None = None
    per_layer: PerLayerLinears | None = None
    scalar: torch.Tensor | None = None  # (1,), of the residual stream after the layer
    streams: dict[str, StreamLayer] = field(default_factory=dict)  # by STREAMS, where there are several
    # Of norms that gate what they give: (rows, hidden) → (rows, rank), and back.
    mixer_gate: tuple[Linear, Linear] | None = None
    mlp_gate: tuple[Linear, Linear] | None = None
    altup: AltUpLayer | None = None
    laurel: LaurelLayer | None = None
    aside: Linear | None = None  # (rows, hidden) → the same, of a layer aside
    convs: tuple[DynamicConv, ...] = ()  # around attention and MLP, of draft heads that have them

    @property
    def mlp_norms(self) -> dict[str, Norm]:
        """Of experts with norms of their own (Experts.own_norms): these, and that before the MLP."""
        return {**(self.mlp.norms if isinstance(self.mlp, ExpertLayer) else {}), "mlp_norm": self.mlp_norm}


@dataclass
class HeadWeights:
    """What a draft head has beside a decoder: see HeadSpec."""

    fc: Linear
    fc_token: Linear | None  # of a head with several streams
    fc_out: Linear | None  # of a head with shared keys and values, whose `fc` is what we call fc_in
    embed_norm: Norm
    hidden_norm: Norm
    input_norms: list[Norm]  # of all that is read together, or of each tap
    clusters: Linear | None = None  # (rows, hidden) → (rows, clusters)
    selector: Selector | None = None
    confidence: Confidence | None = None


@dataclass
class Weights:
    """All weights of a decoder; linears are packed, tables are (rows, size). A draft head's may be its target's."""

    embed_tokens: torch.Tensor
    lm_head: Linear
    layers: list[Layer]
    final_norm: Norm = (None, None)
    embedding_norm: Norm = (None, None)
    embed_positions: torch.Tensor | None = None
    project_in: Linear | None = None
    project_out: Linear | None = None
    head: HeadWeights | None = None
    per_layer_embed: torch.Tensor | None = None  # (vocab, layers · per_layer_size)
    per_layer_in: Linear | None = None  # (rows, hidden) → (rows, layers · per_layer_size)
    per_layer_norm: torch.Tensor | None = None  # (per_layer_size,)
    streams: StreamLayer | None = None  # of the final norm
    altup_in: tuple[Linear, ...] = ()  # of each of AltUp's streams but the first
    altup_out: tuple[Linear, ...] = ()


_UP = ("gate_proj", "up_proj")  # which are packed as one linear, stacked in this order
_BY_HEAD = ("k_b", "v_b", "o_a")  # each head, or group of heads, has a linear of its own
_STREAMS = (*STREAMS, HEAD_STREAMS)
_STREAM_VECTORS = (*(f"{name}{part}" for name in _STREAMS for part in ("_base", "_scale")), *ALTUP_VECTORS)
_OF_EXPERTS = ("correction_bias", "expert_scales", "expert_table")
_FP32 = (*_OF_EXPERTS, *XIELU, "router", "shared_gate", "confidence", *_STREAMS, *_STREAM_VECTORS)
_TABLES = ("rows", "embed_tokens", "embed_positions", "per_layer_embed", "selector_before", "selector_after")
_VECTORS = (*_OF_EXPERTS, *XIELU, "layer_scalar", "confidence", *CONV_BASES, *_STREAM_VECTORS)


def load_weights(
    spec: DecoderSpec,
    sources: dict[str, Source],
    names: Iterable[str],
    tensors: Iterable[tuple[str, torch.Tensor]],
    kernels: Kernels,
    target: Weights | None = None,
) -> Weights:
    """Pack every weight that `sources` names.

    names: all tensor names of the checkpoint. tensors: (name, tensor) pairs; those that are not needed are ignored.
    target: of a draft head, whose embedding and lm_head it takes where it has none of its own.
    Raises IpexAssistError where a weight is missing, has another shape than the config says, or is not finite.
    """
    wanted = resolve(sources, names)
    packer = _Packer(spec, kernels, sources)
    for name, tensor in tensors:
        if name in wanted and isinstance(tensor, torch.Tensor):  # a Mxfp4Stack was checked when it was read
            check_numbers(name, tensor)
        for ours in wanted.get(name, ()):
            packer.add(ours, part_of(tensor, sources[ours], head_dim_of(spec, ours)))
        del tensor  # or it would live on while the next one is read
    return packer.weights(target)


@dataclass
class _Packer:
    """Collects the parts of each linear, and packs it as soon as all are there."""

    spec: DecoderSpec
    kernels: Kernels
    sources: dict[str, Source]
    pending: dict[str, dict[str, torch.Tensor]] = field(default_factory=dict)
    linears: dict[str, Linear] = field(default_factory=dict)
    by_head: dict[str, list[Linear]] = field(default_factory=dict)
    tensors: dict[str, torch.Tensor] = field(default_factory=dict)

    def add(self, name: str, tensor: torch.Tensor) -> None:
        prefix, leaf = name.removesuffix(".weight").removesuffix(".bias").rpartition(".")[::2]
        check_shape(self.spec, name, tuple(tensor.shape))
        layer = layer_of(self.spec, name)
        if layer is not None and len(layer.mixer.shapes(self.spec.hidden_size).get(leaf, ())) == 1:
            narrow = layer.recurrent is None and (leaf.endswith("norm") or leaf == "sinks")
            self.tensors[name] = tensor.to(self.kernels.dtype if narrow else torch.float32, copy=True)
            return
        if leaf.endswith("norm") or leaf.startswith("fc_norm") or leaf in (*_TABLES, *_VECTORS):
            self.tensors[name] = tensor.to(torch.float32 if leaf in _FP32 else self.kernels.dtype, copy=True)
            if leaf == "embed_tokens" and self.spec.tied_head:
                self.linears["lm_head"] = self.kernels.linear(tensor, None)
            return
        group, stack = _stack(layer, leaf)
        key = f"{prefix}.{group}" if prefix else group
        parts = self.pending.setdefault(key, {})
        parts[name.removeprefix(prefix + ".")] = tensor
        expected = list(self._parts(prefix, stack))
        if len(parts) == len(expected):
            ordered = [parts.pop(part) for part in expected]
            del self.pending[key], tensor
            matrices, vectors = ([part for part in ordered if part.dim() == size] for size in (2, 1))
            weight = matrices[0] if len(matrices) == 1 else torch.cat(matrices)
            bias = torch.cat(vectors) if vectors else None
            if bias is not None:  # the last parts may have none: gates beside latents
                bias = functional.pad(bias, (0, len(weight) - len(bias)))
            del matrices, ordered
            if group in _BY_HEAD:
                attention = self.spec.layers[int(prefix.rpartition(".")[2])].attention
                self.by_head[key] = [self.kernels.linear(one, None) for one in weight.chunk(attention.value_parts)]
                return
            kernels = TorchKernels(torch.float32) if group in _FP32 else self.kernels
            self.linears[key] = kernels.linear(weight, bias)

    def _parts(self, prefix: str, stack: tuple[str, ...]) -> Iterator[str]:
        for name in stack:
            for kind in ("weight", "bias"):
                full = f"{prefix}.{name}.{kind}" if prefix else f"{name}.{kind}"
                if full in self.sources:
                    yield f"{name}.{kind}"

    def weights(self, target: Weights | None) -> Weights:
        assert not self.pending, f"incomplete: {sorted(self.pending)[:3]}"
        table, head = self.tensors.get("embed_tokens.weight"), self.linears.get("lm_head")
        if target is not None:
            table = target.embed_tokens if table is None else table
            head = _of_type(target.lm_head, target.embed_tokens.dtype) if head is None else head
        assert table is not None, "no embedding"
        assert head is not None, "no lm_head"
        return Weights(
            embed_tokens=table,
            lm_head=head,
            layers=[self._layer(f"layers.{index}.", layer) for index, layer in enumerate(self.spec.layers)],
            final_norm=self._norm("final_norm"),
            embedding_norm=self._norm("embed_norm"),
            embed_positions=self.tensors.get("embed_positions.weight"),
            project_in=self.linears.get("project_in"),
            project_out=self.linears.get("project_out"),
            per_layer_embed=self.tensors.get("per_layer_embed.weight"),
            per_layer_in=self.linears.get("per_layer_in"),
            per_layer_norm=self.tensors.get("per_layer_norm.weight"),
            head=self._head() if self.spec.head is not None else None,
            streams=self._streams(HEAD_STREAMS),
            altup_in=self._projections("altup_in"),
            altup_out=self._projections("altup_out"),
        )

    def _projections(self, name: str) -> tuple[Linear, ...]:
        count = 0 if self.spec.altup is None else self.spec.altup.count - 1
        return tuple(self.linears[f"altup.{number}.{name}"] for number in range(count))

    def _laurel(self, prefix: str) -> LaurelLayer:
        left, right = (self.linears[f"{prefix}laurel_{name}"] for name in ("left", "right"))
        return LaurelLayer(left, right, self._norm(prefix + "laurel_out_norm"))

    def _streams(self, name: str) -> StreamLayer | None:
        return stream_layer(self.spec, self.kernels, self.linears, self.tensors, name)

    def _head(self) -> HeadWeights:
        assert self.spec.head is not None
        taps = [f"fc_norm_{tap}" for tap in range(len(self.spec.head.taps.layers))]
        names = {"all": ["input_norm"], "each": taps, None: []}[self.spec.head.input_norm]
        return HeadWeights(
            fc=self.linears["fc_in" if "fc_in" in self.linears else "fc"],
            fc_token=self.linears.get("fc_token"),
            fc_out=self.linears.get("fc_out"),
            embed_norm=self._norm("head_embed_norm"),
            hidden_norm=self._norm("head_hidden_norm"),
            input_norms=[self._norm(name) for name in names],
            clusters=self.linears.get("clusters"),
            selector=self._selector(self.spec.head) if self.spec.head.selector_rank else None,
            confidence=self._confidence() if self.spec.head.confidence_size else None,
        )

    def _selector(self, head: HeadSpec) -> Selector:
        before, after = (self.tensors[f"selector_{which}.weight"] for which in ("before", "after"))
        return Selector(before, after, self.linears.get("selector"), head.candidates)

    def _confidence(self) -> Confidence:
        return Confidence(self.tensors["confidence.weight"], self.tensors.get("confidence.bias"))

    def _layer(self, prefix: str, spec: LayerSpec) -> Layer:
        return Layer(
            qkv=self.linears.get(prefix + _first_linear(spec), _no_columns),
            o_proj=self.linears.get(prefix + ("o" if spec.recurrent is None else "mixer_out"), _no_columns),
            mlp=self._mlp_of(prefix, spec),
            attention_norm=self._norm(prefix + "attention_norm"),
            attention_out_norm=self._norm(prefix + "attention_out_norm"),
            mlp_norm=self._norm(prefix + "mlp_norm"),
            mlp_out_norm=self._norm(prefix + "mlp_out_norm"),
            q_norm=self.tensors.get(prefix + "q_norm.weight"),
            k_norm=self.tensors.get(prefix + "k_norm.weight"),
            sinks=self.tensors.get(prefix + "sinks.weight"),
            growth=self._growth(prefix + "q_log"),
            xielu=tuple(
                self.tensors[f"{prefix}{leaf}.weight"] for leaf in XIELU if f"{prefix}{leaf}.weight" in self.tensors
            ),
            linears=self._linears(prefix, spec),
            vectors=self._vectors(prefix, spec),
            ngram_table=ngram_table(self.tensors, prefix) if spec.reads_streams else None,
            latent=self._latent(prefix) if prefix + "k_b" in self.by_head else None,
            compressed=compressed_layer(prefix, self.linears, self.by_head, self.tensors),
            per_layer=self._per_layer(prefix) if self.spec.per_layer_size else None,
            scalar=self.tensors.get(prefix + "layer_scalar.weight"),
            streams={name: made for name in STREAMS if (made := self._streams(prefix + name)) is not None},
            mixer_gate=self._gate(prefix + "mixer_gate")
            if spec.mixer_gate_rank and not self.spec.gates_streams
            else None,
            mlp_gate=self._gate(prefix + "mlp_gate") if spec.mlp_gate_rank and not self.spec.gates_streams else None,
            altup=None if self.spec.altup is None else altup_layer(self.spec.altup, self.tensors, prefix),
            laurel=self._laurel(prefix) if spec.laurel_rank else None,
            aside=self.linears.get(prefix + "aside"),
            convs=tuple(self._conv(prefix + base) for base in CONV_BASES if f"{prefix}{base}.weight" in self.tensors),
        )

    def _linears(self, prefix: str, spec: LayerSpec) -> dict[str, Linear]:
        names = {_stack(spec, leaf)[0] for leaf in spec.mixer.shapes(self.spec.hidden_size)}
        return {name: self.linears[prefix + name] for name in sorted(names) if prefix + name in self.linears}

    def _vectors(self, prefix: str, spec: LayerSpec) -> dict[str, torch.Tensor]:
        found = spec.mixer.shapes(self.spec.hidden_size).items()
        names = [f"{name}.{kind}" for name, shape in found if len(shape) == 1 for kind in ("weight", "bias")]
        return {name: self.tensors[prefix + name] for name in names if prefix + name in self.tensors}

    def _gate(self, name: str) -> tuple[Linear, Linear]:
        return self.linears[name + "_down"], self.linears[name + "_up"]

    def _conv(self, base: str) -> DynamicConv:
        assert self.spec.head is not None
        base_weights = self.tensors[f"{base}.weight"].view(2, self.spec.head.conv_kernel, -1)
        return DynamicConv(base_weights, self.linears[base.removesuffix("_base")])

    def _per_layer(self, prefix: str) -> PerLayerLinears:
        return PerLayerLinears(
            gate=self.linears[prefix + "per_layer_gate"],
            out=self.linears[prefix + "per_layer_out"],
            norm=self._norm(prefix + "per_layer_out_norm"),
        )

    def _latent(self, prefix: str) -> LatentLayer:
        return LatentLayer(
            query=self.linears[prefix + "query"],
            keys=self.by_head[prefix + "k_b"],
            values=self.by_head[prefix + "v_b"],
            norm=self.tensors.get(prefix + "kv_a_norm.weight"),
            query_norm=self.tensors.get(prefix + "q_a_norm.weight"),
            indexer=self._indexer(prefix) if prefix + "index_q" in self.linears else None,
        )

    def _indexer(self, prefix: str) -> IndexerLayer:
        query_norm = self._norm(prefix + "index_q_norm")
        return IndexerLayer(
            self.linears[prefix + "index_in"],
            self.linears[prefix + "index_q"],
            self._norm(prefix + "index_k_norm"),
            None if query_norm[0] is None else query_norm,
            self._growth(prefix + "index_q_log"),
            self.tensors.get(prefix + "index_places.weight"),
        )

    def _growth(self, name: str) -> LogGrowth | None:
        scale, base = (self.tensors.get(f"{name}_{part}.weight") for part in ("scale", "base"))
        return None if scale is None or base is None else (scale, base)

    def _mlp_of(self, prefix: str, spec: LayerSpec) -> Mlp | ExpertLayer | None:
        if isinstance(spec.mlp, Experts):
            return self._experts(prefix, spec.mlp)
        return None if spec.mlp is None else self._mlp(prefix)

    def _mlp(self, prefix: str) -> Mlp:
        return self.linears[prefix + "up"], self.linears[prefix + "down"]

    def _experts(self, prefix: str, experts: Experts) -> ExpertLayer:
        return ExpertLayer(
            router=self.linears[prefix + "router"],
            experts=[self._mlp(f"{prefix}experts.{number}.") for number in range(experts.count)],
            shared=self._mlp(prefix + "shared.") if experts.shared_size else None,
            shared_gate=self.linears.get(prefix + "shared_gate"),
            correction_bias=self.tensors.get(prefix + "correction_bias.weight"),
            scales=self.tensors.get(prefix + "expert_scales.weight"),
            table=expert_table(experts, self.tensors.get(prefix + "expert_table.weight")),
            norms={name: self._norm(prefix + name) for name in EXPERT_NORMS} if experts.own_norms else {},
        )

    def _norm(self, name: str) -> Norm:
        return self.tensors.get(name + ".weight"), self.tensors.get(name + ".bias")


def _of_type(linear: Linear, dtype: torch.dtype) -> Linear:
    """A linear whose rows may be of another type than its own."""
    return lambda x: linear(x.to(dtype)).to(x.dtype)


def _no_columns(x: torch.Tensor) -> torch.Tensor:
    """What the first linear of a layer gives that makes nothing but queries of its input."""
    return x[:, :0]


def _stack(layer: LayerSpec | None, leaf: str) -> tuple[str, tuple[str, ...]]:
    """The linear that a weight is packed in, and all weights that are."""
    stacks = {"up": _UP} | (layer.mixer.stacked if layer is not None else {})
    one = leaf.removesuffix("_proj"), (leaf,)
    return next(((name, parts) for name, parts in stacks.items() if leaf in parts), one)


def _first_linear(layer: LayerSpec) -> str:
    return "mixer_in" if layer.recurrent is not None else "qkv" if layer.attention.latent is None else "latent_in"
