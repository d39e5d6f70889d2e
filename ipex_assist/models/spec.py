"""DecoderSpec: everything an executor must know about a decoder-only transformer, as plain data.

It says what the whole model has (vocabulary, embedding, positions, final norm, head) and what each of its layers has: a
LayerSpec, which is a mixer (attention_spec.py, recurrent_spec.py), an MLP or experts (mlp_spec.py) or none, their norms
and a multiplier. Layers may differ in anything but the width of the residual stream and the kind of their norms: in
heads, head_dim, window, rope (rope_spec.py), and in whether they have experts. Families whose layers are alike say it
once (layers.py). What a layer may have:

- **Norms** (RMS, or layer norm with or without a bias) stand before attention and MLP ("pre", Llama), after the
  residual addition ("post_residual", OPT-350m), after attention and MLP before they are added ("post", OLMo 2), before
  and after ("sandwich", Gemma 2), or before both and after the MLP alone ("pre_and_mlp_out", A.X K1); with parallel
  residuals both read the same rows, through a norm each or one for both. The model may have a norm of the embedding and
  a final one. A norm that weights by 1 + w is folded when weights are packed (`Source.plus`), and so is a factor of the
  logits (`logit_multiplier`, into the final norm).
- **Queries and keys** may be normalised: each head by one weight (Qwen3), each by its own (Command R+), or all heads
  together (OLMo 2), or each head without a weight (Llama 4); before rotation, or each head after it (Hunyuan). Queries
  far into a text may grow (Ministral 3).
- **Positions**: rotary (of the whole head or its first `rotary_dim` values, by one of the model's `ropes`, or none in
  some layers), ALiBi's slopes, or a learned table that is added to the embedding. Rotation of neighbouring pairs
  (GPT-J, GLM-4, Cohere) is that of halves with the rows of query and key in another order (`Source.pairs`).
- **Attention** sees everything, a window, or the chunk of positions that a row is in (Llama 4); its scores may have a
  soft cap, and so may logits. Each query head may have a sink: a learned logit that takes part in the sum of its
  softmax, and has no value (gpt-oss). Attended values may be multiplied with the sigmoid of a gate (Qwen3-Next), or its
  softplus (Laguna), of each value or one for a head (LFM3), before the output projection.
- **The MLP** is plain or gated, with one of ACTIVATIONS, or gpt-oss's clamped_swiglu of gate and up together, or xIELU,
  which has learned numbers and no gate (Apertus); or a row passes through some of many such, the layer's `Experts`.
- **Keys and values** may be another layer's: then the layer has queries alone (Gemma 4). Values may be what the key
  projection gives, before the key's norm and rotation, and may pass a norm without a weight.
- **Per-layer embeddings** (Gemma 3n and 4): a second table has a narrow row of each token for each layer. Beside a
  projection of the embedding it says how much of each of as many features of the residual stream is added after the
  layer's MLP.
- **Latent attention** keeps one narrow row a token for all heads in the place of keys and values (`LatentSpec`), or
  one that is both, beside entries that are made of several tokens each (`CompressedSpec`).
- **Multipliers** of the embedding, of what is added to the residual stream, of attention's scores and of logits.
- **Biases** of query, key and value; output; MLP; head.

The residual stream may be several side by side (`StreamSpec`, Hunyuan 4; `AltUpSpec`, Gemma 3n). Beside attention, its
input and a pair of linears of it may be added (`laurel_rank`, Gemma 3n). A layer may stand aside of it (Zamba2).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

from ipex_assist.models.attention_spec import AttentionSpec
from ipex_assist.models.config import ConfigError
from ipex_assist.models.draft_head import HeadSpec, Taps
from ipex_assist.models.mlp_spec import NOT_ELEMENTWISE, Experts, MlpSpec
from ipex_assist.models.ranges import check_kind, check_range, check_ranges
from ipex_assist.models.recurrent_spec import RecurrentSpec
from ipex_assist.models.rope_spec import Rope
from ipex_assist.models.stream_spec import AltUpSpec, StreamSpec

Norm = Literal["rms", "layer"]
NormPlace = Literal["pre", "post_residual", "post", "sandwich", "pre_and_mlp_out"]

# The least and the largest that each number may be, by Hugging Face's names. The upper ends are far beyond any model: a
# damaged config shall not ask for all memory.
RANGES: dict[str, tuple[float, float]] = {
    "vocab_size": (1, 1 << 24),
    "hidden_size": (1, 1 << 20),
    "num_hidden_layers": (1, 1000),
    "max_position_embeddings": (1, 1 << 30),
    "norm_eps": (1e-30, 0.1),
    "position_offset": (0, 1 << 10),
    "embedding_size": (1, 1 << 20),
    "embedding_multiplier": (1e-6, 1e6),
    "logit_multiplier": (1e-6, 1e6),
    "logit_cap": (1e-3, 1e6),
    "per_layer_size": (0, 1 << 14),
    "per_layer_vocab": (1, 1 << 24),
    "output_vocab_size": (1, 1 << 24),
}
LAYER_RANGES: dict[str, tuple[str, tuple[float, float]]] = {
    "residual_multiplier": ("residual_multiplier", (1e-6, 1e6)),
    "gated_norm_rank": ("mixer_gate_rank", (0, 1 << 20)),
    "laurel_rank": ("laurel_rank", (0, 1 << 16)),
}


@dataclass(frozen=True)
class LayerSpec:
    """One layer. Raises ConfigError for a value out of LAYER_RANGES, and for parts that cannot go together."""

    mixer: AttentionSpec | RecurrentSpec
    mlp: MlpSpec | Experts | None  # None: the layer ends with its mixer
    norm_place: NormPlace = "pre"
    parallel: bool = False  # attention and MLP read the same rows, and are added to them together
    shared_norm: bool = False  # of these, by one norm
    residual_multiplier: float = 1.0  # of what attention and MLP add
    scaled: bool = False  # the residual stream is multiplied with a learned number after the layer
    # Its mixer reads the rows that the mixer of the layer before it read: two layers here, of which the first has no
    # MLP, are one that has two mixers side by side (Falcon-H1).
    beside: bool = False
    # What its routed experts give is added after the MLP of the next layer, and not after its own (LongCat-Flash).
    defers: bool = False
    # Columns of the row by which what the norm before its mixer, or before its MLP, gives is gated (A.X-K2): y becomes
    # y · sigmoid(up · silu(down · y)); 0: it is not.
    mixer_gate_rank: int = 0
    mlp_gate_rank: int = 0
    # Columns between two linears R and L (LAuReL, Menghani et al. 2024, arXiv:2411.07501); 0: there are none. With y
    # the input of attention, x becomes (x + attention(y) + y + norm(R L y)) · 2^-½.
    laurel_rank: int = 0
    # Its attention reads the residual stream x beside the embedding e, its MLP what attention gives alone, and neither
    # is added to x (Zamba2): t = W mlp(norm(attention(norm[x, e]))), and the next layer's mixer reads norm(x + t).
    # The number of the block whose weights it has, as others may have them; from 1 on, and 0 of no such layer.
    aside: int = 0

    def __post_init__(self) -> None:
        check_ranges(self, LAYER_RANGES)
        assert not self.defers or (self.experts is not None and self.experts.shared_size), "experts that are deferred"
        assert not self.beside or self.norm_place == "pre", "norms of a mixer beside another are before both"
        gated = self.has_pre_norms and not self.parallel and not self.beside
        assert gated or not (self.mixer_gate_rank or self.mlp_gate_rank), "gates of norms"
        assert not self.aside or (self._is_plain and isinstance(self.mlp, MlpSpec)), "a layer aside"
        check_kind("norm_place", self.norm_place, NormPlace)
        assert self.norm_place == "sandwich" or self.experts is None or not self.experts.own_norms, "norms of experts"
        if self.mlp is None and self.parallel:
            raise ConfigError("parallel", True, "false in a layer without an MLP")

    @property
    def _is_plain(self) -> bool:
        """Whether it is attention, and what comes after it, with norms before both."""
        more = self.parallel, self.scaled, self.beside, self.mixer_gate_rank, self.mlp_gate_rank, self.laurel_rank
        plain = isinstance(self.mixer, AttentionSpec) and self.mixer.latent is None and self.mixer.choice is None
        return plain and self.norm_place == "pre" and self.residual_multiplier == 1 and not any(more)

    @property
    def adds_deferred(self) -> bool:
        """Whether it may add what experts of the layer before it gave: nothing is done to what its own MLP gives."""
        whole = self.mlp is not None and self.norm_place == "pre" and self.residual_multiplier == 1
        return whole and not any((self.parallel, self.scaled, self.defers))

    @property
    def has_pre_norms(self) -> bool:
        """Whether its mixer and its MLP read rows after a norm."""
        return self.norm_place not in ("post_residual", "post")

    @property
    def has_mixer_out_norm(self) -> bool:
        """Whether what its mixer gives passes a norm before it is added."""
        return self.norm_place in ("post", "sandwich")

    @property
    def has_mlp_out_norm(self) -> bool:
        """Whether what its MLP gives passes one."""
        return self.mlp is not None and self.norm_place in ("post", "sandwich", "pre_and_mlp_out")

    @property
    def attention(self) -> AttentionSpec:
        """Its mixer, where that is attention."""
        assert isinstance(self.mixer, AttentionSpec), "attention of a recurrent layer"
        return self.mixer

    @property
    def reads_streams(self) -> bool:
        """Whether its mixer reads residual streams as they are, and adds to each of them."""
        return isinstance(self.mixer, RecurrentSpec) and self.mixer.made_of.reads_streams

    @property
    def recurrent(self) -> RecurrentSpec | None:
        """Its mixer, where that is recurrent."""
        return self.mixer if isinstance(self.mixer, RecurrentSpec) else None

    @property
    def mixer_in_size(self) -> int:
        """Columns of a row that its mixer reads, without gaps."""
        if isinstance(self.mixer, RecurrentSpec):
            return sum(self.mixer.all_parts.values())
        return self.mixer.qkv_size

    @property
    def mixer_out_size(self) -> int:
        """Columns of what its mixer gives to its last linear."""
        return self.mixer.value_size if isinstance(self.mixer, RecurrentSpec) else self.mixer.output_size

    def mixer_weights(self, hidden: int, norm_width: int) -> int:
        """Elements of the matrices of its mixer and of norms' gates, for rows of `hidden` columns."""
        if self.aside:
            return (2 * self.attention.qkv_size + self.attention.output_size + hidden) * hidden
        gates = 2 * norm_width * (self.mixer_gate_rank + self.mlp_gate_rank)
        return self.mixer.weights(hidden) + gates + 2 * hidden * self.laurel_rank

    @property
    def experts(self) -> Experts | None:
        """Its experts, if it has any in the place of an MLP."""
        return self.mlp if isinstance(self.mlp, Experts) else None

    @property
    def inner_size(self) -> int:
        """Columns between the linears of its MLP, or of each of its experts; 0 where it has none."""
        return 0 if self.mlp is None else self.mlp.intermediate_size

    @property
    def each_mlp(self) -> MlpSpec:
        """Its MLP, or what each of its experts is."""
        assert self.mlp is not None, "the MLP of a layer without one"
        return self.mlp.each if isinstance(self.mlp, Experts) else self.mlp


@dataclass(frozen=True)
class DecoderSpec:
    """One decoder-only transformer. Sizes are counts of elements; names are Hugging Face's.

    Raises ConfigError for a value out of RANGES, and for values that cannot go together.
    """

    model_type: str
    vocab_size: int
    hidden_size: int
    layers: tuple[LayerSpec, ...]
    max_position_embeddings: int
    norm: Norm = "rms"
    norm_eps: float = 1e-6
    norm_affine: bool = True
    norm_bias: bool = True  # of layer norms
    final_norm: bool = True
    embedding_norm: bool = False
    # Rules of rotary positions, of which layers have one each or none. The first says how long a sequence may be.
    ropes: tuple[Rope, ...] = ()
    learned_positions: bool = False  # a table that is part of the weights, read at position + offset
    position_offset: int = 0
    head_bias: bool = False
    logit_cap: float | None = None
    embedding_multiplier: float = 1.0
    logit_multiplier: float = 1.0  # folded into the final norm: by models/, where that is mapped
    # Of our names of linears, factors of their weights and of their biases, which are folded in likewise (Falcon-H1).
    linear_multipliers: tuple[tuple[str, float, float], ...] = ()
    tied_head: bool = False
    embedding_size: int | None = None  # where the token embedding is narrower or wider than hidden_size (OPT-350m)
    per_layer_size: int = 0  # values of a token for each layer in the table of per-layer embeddings; 0: there is none
    # How many layers after the first get something of images as well (Qwen3-VL's DeepStack); no weight depends on it.
    embedding_layers: int = field(default=0, repr=False)
    # In which layers rows of an image see each other, those behind them included; None: in none.
    whole_images: Literal["all", "windows"] | None = field(default=None, repr=False)
    output_vocab_size: int | None = None  # tokens that have logits, the first of the vocabulary; None: all
    per_layer_vocab: int | None = None  # rows of that table: tokens from there on have the first; None: one a token
    streams: StreamSpec | None = None  # of the residual stream; None: it is one
    altup: AltUpSpec | None = None  # likewise
    head: HeadSpec | None = None  # of a draft head: it reads hidden states of its target beside tokens

    def __post_init__(self) -> None:
        for name, ends in RANGES.items():
            if (value := getattr(self, name)) is not None:
                check_range(name, value, ends)
        check_kind("norm", self.norm, Norm)
        if self.output_vocab_size is not None and (self.output_vocab_size > self.vocab_size or self.tied_head):
            raise ConfigError("output_vocab_size", self.output_vocab_size, "null, or fewer rows of a head of their own")
        for name, *factors in self.linear_multipliers:
            for factor in factors:
                check_range(f"multiplier of {name}", factor, (1e-9, 1e9))
        for before, layer in zip((None, *self.layers), self.layers, strict=False):
            assert not layer.beside or (before is not None and before.mlp is None), "a mixer beside none"
            assert before is None or not before.defers or layer.adds_deferred, "experts that are deferred to a layer"
            follows = layer.has_pre_norms and not (layer.aside or layer.beside or layer.mixer_gate_rank)
            assert before is None or not before.aside or follows, "a layer aside, and no mixer that reads what it gives"
        assert not self.layers[-1].defers, "experts that are deferred to none"
        assert not self.layers[-1].aside, "a layer aside that nothing follows"
        assert self.altup is None or (self.per_layer_size and not self.streams and not self.head), "AltUp"
        assert self.streams is None or not (self.embedding_layers or self.per_layer_size), "streams"
        gated = 0 if self.streams is None else self.streams.gate_rank
        for layer in self.layers:
            ranks = layer.mixer_gate_rank, layer.mlp_gate_rank
            expected = (0, 0) if layer.reads_streams else (gated, gated if layer.mlp else 0)
            assert not gated or ranks == expected, "gates of residuals"
            assert gated or not layer.reads_streams, "embeddings of n-grams without gated residuals"
            if (rank := max(layer.mixer_gate_rank, layer.mlp_gate_rank)) > self.hidden_size:
                raise ConfigError("gated_norm_rank", rank, f"{self.hidden_size} at most, the width of a row")
        for attention in self.attentions:
            self._check_rotary(attention)
        if not 0 <= self.embedding_layers < len(self.layers):
            raise ConfigError(
                "deepstack_visual_indexes", f"a list of {self.embedding_layers}", "shorter than the layers"
            )
        for number, layer in enumerate(self.layers if self.head is None else ()):
            if isinstance(layer.mixer, AttentionSpec) and layer.mixer.kv_layer is not None:
                self._check_kv_layer(number, layer.mixer, layer.mixer.kv_layer)
        if self.per_layer_size and any(layer.mlp is None or layer.parallel for layer in self.layers):
            raise ConfigError("per_layer_size", self.per_layer_size, "0 where a layer does not end with an MLP")
        if self.per_layer_size and any(layer.each_mlp.activation in NOT_ELEMENTWISE for layer in self.layers):
            raise ConfigError("per_layer_size", self.per_layer_size, f"0 with {' and '.join(NOT_ELEMENTWISE)}")

    def _check_kv_layer(self, number: int, attention: AttentionSpec, kv_layer: int) -> None:
        found = self.layers[kv_layer].mixer if 0 <= kv_layer < number else None
        alike = isinstance(found, AttentionSpec) and (found.latent is None) == (attention.latent is None)
        if not isinstance(found, AttentionSpec) or found.shares_kv or not alike:
            raise ConfigError("kv_layer", kv_layer, f"a layer before {number} with keys and values of its own")
        widths = [(each.kv_heads, each.head_dim, each.value_width) for each in (found, attention)]
        if widths[0] != widths[1]:
            raise ConfigError(
                "kv_layer", kv_layer, f"a layer with {attention.kv_heads} KV heads of {attention.head_dim}, as {number}"
            )

    def _check_rotary(self, attention: AttentionSpec) -> None:
        size, name = attention.rotary_size, "head_dim" if attention.rotary_dim is None else "rotary_dim"
        if attention.rope is not None and not 0 <= attention.rope < len(self.ropes):
            raise ConfigError("rope", attention.rope, f"one of the {len(self.ropes)} of the model")
        for rope in self.ropes:
            if size % 2:
                raise ConfigError(name, size, "even, because its halves are rotated against each other")
            if rope.kind == "dynamic" and size < 4:
                raise ConfigError(name, size, "at least 4 with dynamic rope scaling")
            learned = "frequency_logs" in rope.scaling and attention.rope is not None
            listed = ("short_factor", "long_factor") if rope.kind == "longrope" else ()
            for factors in (*listed, *(("frequency_logs",) if learned else ())):
                count = len(rope.scaling[factors])
                if count != size // 2:
                    raise ConfigError(factors, f"a list of {count}", f"of {size // 2} numbers, half of what is rotated")

    @property
    def num_hidden_layers(self) -> int:
        """The number of layers."""
        return len(self.layers)

    @property
    def keeps_embedding(self) -> bool:
        """Whether layers read the embedding beside the residual stream."""
        return any(layer.aside for layer in self.layers)

    @property
    def lm_head_rows(self) -> int:
        """The logits of a row: fewer than `vocab_size` where the head, or a draft head, tells fewer tokens apart."""
        rows = self.output_vocab_size if self.head is None else self.head.draft_vocab_size
        return rows or self.vocab_size

    @cached_property
    def rotary_tables(self) -> tuple[tuple[int, int], ...]:
        """The tables of cos and sin that layers need: which of `ropes`, and how many values of a head it rotates."""
        return tuple(sorted({(each.rope, each.rotary_size) for each in self.attentions if each.rope is not None}))

    @property
    def rotary_width(self) -> int:
        """Values of all these tables at one position, where they lie side by side."""
        return sum(size for _, size in self.rotary_tables)

    def rotary_columns(self, attention: AttentionSpec) -> slice | None:
        """The columns among these that rotate a layer's heads; None where nothing does."""
        if attention.rope is None:
            return None
        place = self.rotary_tables.index((attention.rope, attention.rotary_size))
        first = sum(size for _, size in self.rotary_tables[:place])
        return slice(first, first + attention.rotary_size)

    @property
    def norm_width(self) -> int:
        """Columns of the norms before mixers, MLPs and the head, and of their gates: of all streams, if these gate."""
        return self.hidden_size * (self.streams.count if self.streams is not None and self.streams.gated else 1)

    @property
    def gates_streams(self) -> bool:
        """Whether residuals are gated: streams pass their norms before they are read."""
        return self.streams is not None and self.streams.gated

    @property
    def weighs_streams(self) -> bool:
        """Whether it has several streams that are weighed by numbers."""
        return self.streams is not None and not self.streams.gated

    def tap_width(self, taps: Taps) -> int:
        """Columns of a row of hidden states of one tap."""
        return self.hidden_size * (self.streams.count if self.streams is not None and taps.streams == "all" else 1)

    def norms_reads(self, layer: int) -> bool:
        """Whether what a mixer or an MLP of this layer reads passes a norm, and is not made of normed streams."""
        return self.layers[layer].has_pre_norms and not self.gates_streams

    @property
    def per_layer_tokens(self) -> int:
        """Tokens that have per-layer embeddings of their own."""
        return min(self.vocab_size, self.per_layer_vocab or self.vocab_size)

    @property
    def norms_biased(self) -> bool:
        """Whether norms add a bias."""
        return self.norm == "layer" and self.norm_affine and self.norm_bias

    @property
    def projected_embedding(self) -> bool:
        """Whether the embedding passes through project_in and project_out (OPT-350m)."""
        return self.embedding_size not in (None, self.hidden_size)

    @cached_property
    def attentions(self) -> tuple[AttentionSpec, ...]:
        """The kinds of attention that layers have, each once."""
        return tuple(dict.fromkeys(each.mixer for each in self.layers if isinstance(each.mixer, AttentionSpec)))

    @cached_property
    def recurrents(self) -> tuple[RecurrentSpec, ...]:
        """The kinds of recurrent mixers that layers have, each once; none in most models."""
        return tuple(dict.fromkeys(each.mixer for each in self.layers if isinstance(each.mixer, RecurrentSpec)))

    @cached_property
    def expert_layers(self) -> tuple[Experts, ...]:
        """The experts of each layer that has any."""
        return tuple(layer.experts for layer in self.layers if layer.experts is not None)

    @property
    def experts(self) -> Experts | None:
        """Those of the first such layer; None in a model without."""
        return self.expert_layers[0] if self.expert_layers else None

    @property
    def context_length(self) -> int:
        """Tokens a sequence can hold: dynamic and yarn positions reach beyond the length the model was trained at."""
        if not self.ropes or self.ropes[0].kind not in ("dynamic", "yarn"):
            return self.max_position_embeddings  # longrope's is the stretched length
        scaling = self.ropes[0].scaling
        trained = scaling.get("original_max_position_embeddings") or self.max_position_embeddings
        return max(self.max_position_embeddings, int(trained * scaling.get("factor", 1.0)))

    def context_for(self, prompt_tokens: int) -> int:
        """Tokens that a sequence can hold whose prompt has `prompt_tokens`.

        Longrope rotates all rows of a sequence one way up to the trained length and another way beyond, and what was
        computed the one way does not go on the other: a sequence that begins within that length ends there.
        """
        if self.ropes and self.ropes[0].kind == "longrope":
            trained = int(self.ropes[0].scaling["original_max_position_embeddings"])
            return min(trained, self.context_length) if prompt_tokens <= trained else self.context_length
        return self.context_length

    @cached_property
    def keeps_states(self) -> bool:
        """Whether a sequence has a state on the native core, and is cut by PENDING_ROWS at most."""
        return bool(self.recurrents) or any(each.keeps_state for each in self.attentions)

    def kv_bytes_per_token(self, element_size: int, scale_size: int = 0) -> int:
        """Bytes of keys and values that one token adds to torch's cache, with a scale for each head's key and value.

        The native core's blocks have as many, and fewer where sequences keep some in their states (`keeps_states`).

        Layers that read those of another one add none; an indexer's key has a scale of its own, too. Entries, and what
        they are made of, are never in fewer than 16 bits.
        """
        attentions = [each.mixer for each in self.layers if isinstance(each.mixer, AttentionSpec)]
        heads = ((each.kv_heads, each.head_dim + each.value_width) for each in attentions if not each.shares_kv)
        kept = [(each.kept_beside, each.pools_index) for each in attentions if each.kept_beside]
        index = sum(
            size * max(element_size, 2) if pooled else size * element_size + scale_size for size, pooled in kept
        )
        return index + sum(count * (width * element_size + 2 * scale_size) for count, width in heads)
