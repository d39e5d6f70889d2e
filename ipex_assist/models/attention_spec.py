"""Attention of a layer, as plain data: over keys and values of heads, or over latents."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from ipex_assist.models.choice_spec import BlockChoiceSpec, IndexerSpec
from ipex_assist.models.config import ConfigError
from ipex_assist.models.ranges import check_kind, check_ranges

GateActivation = Literal["sigmoid", "softplus"]
HeadNorm = Literal["head", "each_head", "all_heads", "unweighted"]

# The least and the largest that each number may be, by Hugging Face's names, and our shorter ones.
ATTENTION_RANGES: dict[str, tuple[str, tuple[float, float]]] = {
    "num_attention_heads": ("heads", (1, 4096)),
    "num_key_value_heads": ("kv_heads", (1, 4096)),
    "head_dim": ("head_dim", (1, 4096)),
    "v_head_dim": ("v_head_dim", (1, 4096)),
    "attention_scale": ("scale", (1e-6, 1e6)),
    "rotary_dim": ("rotary_dim", (2, 4096)),
    "attention_cap": ("cap", (1e-3, 1e6)),
    "attention_value_scale": ("value_scale", (1e-6, 1e6)),
    "sliding_window": ("window", (1, 1 << 30)),
    "attention_chunk_size": ("chunk", (1, 1 << 30)),
    "llama_4_scaling_beta": ("growth", (0, 1e3)),
    "original_max_position_embeddings": ("growth_step", (1, 1 << 30)),
}
LATENT_RANGES: dict[str, tuple[str, tuple[float, float]]] = {
    "kv_lora_rank": ("rank", (1, 1 << 12)),
    "qk_rope_head_dim": ("rope_dim", (0, 1 << 12)),
    "qk_nope_head_dim": ("nope_dim", (1, 1 << 12)),
    "v_head_dim": ("value_dim", (1, 1 << 12)),
    "q_lora_rank": ("query_rank", (1, 1 << 20)),
}


@dataclass(frozen=True)
class LatentSpec:
    """Multi-head latent attention (DeepSeek-V2, arXiv:2405.04434, section 2.1), in its absorbed form.

    A row gives a latent c (rank), after its norm, and a rotary key (rope_dim), which all heads share. Head h's key is
    W_UK c beside the rotary key, and its value W_UV c; so q · W_UK c = (W_UKᵀ q) · c, and with p the shares of the
    softmax Σ p W_UV c = W_UV Σ p c: attention runs over the latents themselves, as one KV head, and nothing else is
    kept. Queries are made of the layer's input, or of a normalised row of `query_rank` values in between.

    Raises ConfigError for a value out of LATENT_RANGES.
    """

    rank: int
    rope_dim: int
    nope_dim: int  # values of a head's query that are not rotated
    value_dim: int  # of each head
    query_rank: int | None = None
    # Queries read that row after its norm and, beside it, before it; so do gates of values (A.X-K2). An indexer's
    # queries read the first half.
    reads_unnormed: bool = False
    norm_eps: float = 1e-6  # of the norms of the latent and of the query's row, whatever the model's other norms have
    indexer: IndexerSpec | None = None  # of sparse attention; None: rows attend to all that they see

    def __post_init__(self) -> None:
        check_ranges(self, LATENT_RANGES)
        assert not self.reads_unnormed or self.query_rank, "a row that is not there, before its norm"
        if self.indexer is not None and self.index_dim and self.query_rank is None and not self.indexer.reads_input:
            raise ConfigError("q_lora_rank", None, "given: the indexer's queries are made of that row")
        if self.index_dim and self.index_dim < self.rope_dim:
            raise ConfigError("index_head_dim", self.index_dim, f"at least qk_rope_head_dim, {self.rope_dim}")

    @property
    def query_width(self) -> int | None:
        """Values of what queries are made of; None where that is the layer's input."""
        return self.query_rank and self.query_rank * (2 if self.reads_unnormed else 1)

    @property
    def index_dim(self) -> int:
        """Values of the indexer's key that is kept of a position; 0 where there is none."""
        return 0 if self.indexer is None else self.indexer.dim

    @property
    def index_kept(self) -> int:
        """Values that are kept of a position for it."""
        return 0 if self.indexer is None else self.indexer.kept

    @property
    def compressed(self) -> tuple[int, int, int]:
        """Groups, rate and parts of a CompressedSpec, else zeros."""
        return 0, 0, 0

    @property
    def shares_choice(self) -> bool:
        """Whether rows attend to what a layer before has chosen."""
        return self.indexer is not None and not self.indexer.heads

    @property
    def head_dim(self) -> int:
        """Values of the one key that is kept: first those that are rotated, then the latent."""
        return self.rope_dim + self.rank

    @property
    def columns(self) -> int:
        """Of what is made of the layer's input: the queries' row, the key, and what an indexer makes of it."""
        own = 0 if self.indexer is None else self.indexer.kept + self.indexer.heads
        return (self.query_rank or 0) + self.head_dim + own

    @property
    def beside(self) -> int:
        """Values of a row that are kept beside its key and value."""
        return self.index_kept

    @property
    def kept_beside(self) -> int:
        """Of all values that are kept beside those, a position's; they are in no fewer than 16 bits."""
        return self.beside

    def output_size(self, heads: int) -> int:
        """Columns of what the output projection takes."""
        return heads * self.value_dim

    def inner_weights(self, heads: int, hidden: int) -> int:
        """Elements of the matrices that are neither the first nor the last of such attention."""
        row, width = self.query_rank or hidden, self.query_width or hidden
        if self.indexer is not None and self.indexer.reads_input:
            row = hidden
        count = 0 if self.indexer is None else row * self.indexer.heads * self.indexer.dim
        query = width * (self.nope_dim + self.rope_dim)
        return count + heads * (query + self.rank * (self.nope_dim + self.value_dim))

    def shapes(self, heads: int, hidden: int) -> dict[str, tuple[int, ...]]:
        """Of the weights of such attention by our names, in a layer of rows of `hidden` columns."""
        row, query = self.query_rank or hidden, self.query_width or hidden
        rotated = {"q_rope_proj": (heads * self.rope_dim, query), "k_rope_proj": (self.rope_dim, hidden)}
        return {
            **(rotated if self.rope_dim else {}),
            **({"q_a_proj": (row, hidden), "q_a_norm": (row,)} if self.query_rank else {}),
            "q_nope_proj": (heads * self.nope_dim, query),
            "kv_a_proj": (self.rank, hidden),
            "kv_a_norm": (self.rank,),
            "k_b_proj": (heads * self.rank, self.nope_dim),
            "v_b_proj": (heads * self.value_dim, self.rank),
            "o_proj": (hidden, heads * self.value_dim),
            **({} if self.indexer is None else self.indexer.shapes(hidden, row)),
        }

    # Of its weights, those that have a bias where such attention's inputs have some, and those that always have one.
    biased_inputs: ClassVar[tuple[str, ...]] = ("q_a_proj", "k_rope_proj", "kv_a_proj")
    biased: ClassVar[tuple[str, ...]] = ("index_k_norm", "index_q_norm")
    # Linears of several of them, but for gates (AttentionSpec.stacked).
    stacked: ClassVar[dict[str, tuple[str, ...]]] = {
        "latent_in": biased_inputs,
        "query": ("q_nope_proj", "q_rope_proj"),
        "index_in": ("index_k_proj", "index_gate_proj", "index_weights_proj"),
    }


@dataclass(frozen=True)
class AttentionSpec:
    """Softmax attention with grouped keys and values, or over latents.

    Raises ConfigError for a value out of ATTENTION_RANGES, and for values that cannot go together.
    """

    heads: int
    kv_heads: int
    head_dim: int
    v_head_dim: int | None = None  # of a KV head's value; head_dim where None
    window: int | None = None  # how many of the latest positions a row may see; None is all of them
    chunk: int | None = None  # positions are in chunks of so many, and a row sees none before its own; None: all
    rope: int | None = None  # which of the model's `ropes` rotates query and key; None: none does
    rotary_dim: int | None = None  # how many values of each head are rotated; head_dim where None
    alibi_slopes: tuple[float, ...] = ()  # one a head; empty: none
    qk_norm: HeadNorm | None = None
    norm_after_rope: bool = False  # that norm is of rotated heads
    qkv_bias: bool = False
    output_bias: bool = False
    sinks: bool = False  # a logit a query head beside the scores of its softmax
    output_gate: bool = False  # attended values are multiplied with a function of a linear of the layer's input
    gate_activation: GateActivation = "sigmoid"
    gate_per_head: bool = False  # of which each head has one value, for all of its own
    scale: float | None = None  # of query · key; head_dim ** -0.5 where None
    cap: float | None = None  # scores x become cap · tanh(x / cap)
    # Queries at position p are multiplied with 1 + growth · log(1 + ⌊(p + growth_shift) / growth_step⌋).
    growth: float = 0.0
    growth_step: int | None = None
    growth_shift: int = 0
    # Queries of head h at position p, those of an indexer likewise, are multiplied with scale_h · log(p + 1) + base_h,
    # which are learned (Mistral Large 4).
    log_growth: bool = False
    # The earlier layer, or layer of a draft head's target (HeadSpec "shared_kv"), whose keys and values it reads; None:
    # it has its own.
    kv_layer: int | None = None
    values_are_keys: bool = False  # values are what the key projection gives, before its norm and rotation
    value_norm: bool = False  # each head's value passes an RMS norm without a weight
    value_scale: float | None = None  # of attended values
    # Keys and queries are then of one KV head, head_dim and rotary_dim those of the latent and its rotary key.
    latent: LatentSpec | None = None
    choice: BlockChoiceSpec | None = None  # None: rows attend to all that they see
    indexer: IndexerSpec | None = None  # likewise, without latents: of means

    def __post_init__(self) -> None:
        check_ranges(self, ATTENTION_RANGES)
        if self.indexer is not None:
            assert self.indexer.means, "an indexer of latents"
            assert not any((self.latent, self.choice, self.shares_kv)), "means of keys"
            assert not any((self.window, self.chunk, self.alibi_slopes)), "means of keys"
            if self.rope is not None and self.indexer.dim < self.rotary_size:
                raise ConfigError("indexer_head_dim", self.indexer.dim, f"{self.rotary_size} at least, what is rotated")
        if self.choice is not None:
            assert not any((self.latent, self.shares_kv, self.window, self.chunk, self.alibi_slopes)), "chosen blocks"
            assert self.qk_norm != "unweighted", "chosen blocks"
            if self.rope is not None and self.choice.dim < self.rotary_size:
                raise ConfigError("index_head_dim", self.choice.dim, f"{self.rotary_size} at least, what is rotated")
        if self.latent is not None:
            rotated = self.latent.rope_dim or None
            assert (self.kv_heads, self.head_dim, self.rotary_dim) == (1, self.latent.head_dim, rotated)
            assert rotated or self.rope is None, "a rope that rotates nothing"
            assert not any((self.qk_norm, self.alibi_slopes)), "beside latents"
            assert self.gate_activation == "sigmoid", "beside latents"
            assert not any((self.values_are_keys, self.value_norm, self.v_head_dim, self.value_scale)), "beside latents"
        check_kind("gate_activation", self.gate_activation, GateActivation)
        assert not self.shares_kv or not any((self.values_are_keys, self.value_norm)), "values of another layer"
        assert not self.values_are_keys or self.qk_norm != "all_heads", "values before a norm of all keys"
        assert not self.values_are_keys or self.v_head_dim in (None, self.head_dim), "values narrower than keys"
        if self.heads % self.kv_heads:
            raise ConfigError("num_key_value_heads", self.kv_heads, f"a divisor of the {self.heads} heads")
        if self.rotary_size > self.head_dim:
            raise ConfigError("rotary_dim", self.rotary_size, f"{self.head_dim} at most, the width of a head")
        if self.alibi_slopes and len(self.alibi_slopes) != self.heads:
            raise ConfigError("alibi", f"{len(self.alibi_slopes)} slopes", f"{self.heads}, one a head")
        if self.growth and self.growth_step is None:
            raise ConfigError("original_max_position_embeddings", None, "given: queries grow by it")
        assert not (self.norm_after_rope and self.qk_norm == "all_heads"), "a norm of all heads after their rotation"

    @property
    def rotary_size(self) -> int:
        """How many values of a head a rope rotates, if the layer has one."""
        return self.head_dim if self.rotary_dim is None else self.rotary_dim

    @property
    def score_scale(self) -> float:
        """The factor that query · key is multiplied with."""
        return self.head_dim**-0.5 if self.scale is None else self.scale

    @property
    def shares_kv(self) -> bool:
        """Whether its keys and values are another layer's."""
        return self.kv_layer is not None

    @property
    def value_width(self) -> int:
        """Values of a KV head that are kept beside its key."""
        return (self.v_head_dim or self.head_dim) if self.latent is None else self.latent.rank

    @property
    def output_size(self) -> int:
        """Columns of what the output projection takes."""
        return self.heads * self.value_width if self.latent is None else self.latent.output_size(self.heads)

    @property
    def group(self) -> int:
        """Query heads that share a key/value head."""
        return self.heads // self.kv_heads

    @property
    def query_size(self) -> int:
        """Columns of the query projection."""
        return self.heads * self.head_dim

    @property
    def key_size(self) -> int:
        """Columns of the key projection."""
        return self.kv_heads * self.head_dim

    @property
    def value_size(self) -> int:
        """Columns of the value projection."""
        return self.kv_heads * self.value_width

    @property
    def gate_size(self) -> int:
        """Columns of the linear of the output gate; 0 where there is none."""
        return 0 if not self.output_gate else self.heads if self.gate_per_head else self.output_size

    @property
    def qkv_size(self) -> int:
        """Columns of the projections of query, key, value and output gate; or of the query's row and the latent."""
        if self.latent is not None:
            columns = self.latent.columns - (self.latent.head_dim if self.shares_kv else 0)
            return columns + (0 if self.latent.reads_unnormed else self.gate_size)
        keys = 0 if self.shares_kv else self.key_size
        values = 0 if self.shares_kv or self.values_are_keys else self.value_size
        return self.query_size + keys + values + self.gate_size + (self.chooses_by + 1) * self.index_kept

    @property
    def chooses_by(self) -> int:
        """Queries of a row that are made to choose what it attends to: of blocks one for each KV head."""
        return self.kv_heads if self.indexer is None else self.indexer.heads

    @property
    def index_kept(self) -> int:
        """Values that are kept of a position to choose it by; 0 where there are none."""
        if self.indexer is not None:
            return self.indexer.kept
        return self.choice.dim if self.choice is not None else 0 if self.latent is None else self.latent.index_kept

    @property
    def pools_index(self) -> bool:
        """Whether that is what keys of pools, or entries, are made of; int8 keys and values do not narrow it."""
        if self.indexer is not None:
            return self.indexer.pool > 1
        if self.latent is None or self.latent.compressed[1]:
            return self.latent is not None
        return self.latent.indexer is not None and self.latent.indexer.pool > 1

    @property
    def keeps_state(self) -> bool:
        """Whether a sequence has a state in such layers: what pools and entries are made of, and keys of a window."""
        return self.pools_index or (self.latent is not None and self.latent.compressed[0] > 0)

    @property
    def value_parts(self) -> int:
        """Linears that make what the output projection takes of attended values: of heads, or of groups of them."""
        return (0 if self.latent is None else self.latent.compressed[0]) or self.heads

    @property
    def beside(self) -> int:
        """Values of a row that are kept beside its key and value."""
        return self.index_kept if self.latent is None else self.latent.beside

    @property
    def kept_beside(self) -> int:
        """Of all values that are kept beside those, a position's; they are in no fewer than 16 bits."""
        return self.index_kept if self.latent is None else self.latent.kept_beside

    def shapes(self, hidden: int) -> dict[str, tuple[int, ...]]:
        """Of its weights by our names, in a layer of rows of `hidden` columns."""
        read = self.latent.query_width if self.latent is not None and self.latent.reads_unnormed else hidden
        made: dict[str, tuple[int, ...]] = {"sinks": (self.heads,)} if self.sinks else {}
        made |= {"g_proj": (self.gate_size, read or hidden)} if self.output_gate else {}
        made |= self._head_shapes(hidden) if self.latent is None else self._latent_shapes(self.latent, hidden)
        return made

    def _latent_shapes(self, latent: LatentSpec, hidden: int) -> dict[str, tuple[int, ...]]:
        made = latent.shapes(self.heads, hidden)
        kept = ("k_rope_proj", "kv_a_proj", "kv_a_norm")
        made = {name: shape for name, shape in made.items() if not self.shares_kv or name not in kept}
        if self.log_growth:
            indexers = ("index_q_log_scale", "index_q_log_base") if latent.index_dim else ()
            made |= dict.fromkeys(("q_log_scale", "q_log_base"), (self.heads,))
            made |= dict.fromkeys(indexers, (latent.indexer.heads if latent.indexer else 0,))
        return made

    def _head_shapes(self, hidden: int) -> dict[str, tuple[int, ...]]:
        one, normed = self.qk_norm == "head", self.qk_norm not in (None, "unweighted")
        parts = {"q": self.query_size} | ({} if self.shares_kv else {"k": self.key_size})
        made: dict[str, tuple[int, ...]] = {f"{name}_proj": (size, hidden) for name, size in parts.items()}
        made |= {f"{name}_norm": (self.head_dim if one else size,) for name, size in parts.items() if normed}
        made |= {"v_proj": (self.value_size, hidden)} if not self.shares_kv and not self.values_are_keys else {}
        made |= {} if self.choice is None else self.choice.shapes(hidden, self.kv_heads)
        made |= {} if self.indexer is None else self.indexer.shapes(hidden, hidden)
        return made | {"o_proj": (hidden, self.output_size)}

    @property
    def stacked(self) -> dict[str, tuple[str, ...]]:
        """Linears of several of its weights, which read the same rows, and these in their order."""
        if self.latent is None:
            return {"qkv": ("q_proj", "k_proj", "v_proj", "g_proj", "index_q_proj", "index_k_proj")}
        with_gates = "query" if self.latent.reads_unnormed else "latent_in"
        return {
            name: (*parts, *(("g_proj",) if name == with_gates else ())) for name, parts in self.latent.stacked.items()
        }

    @property
    def biased(self) -> set[str]:
        """Of its weights, those that have a bias."""
        inputs = ("q_proj", "k_proj", "v_proj", "g_proj") if self.latent is None else self.latent.biased_inputs
        found = {*(self.latent.biased if self.latent is not None else ()), *(inputs if self.qkv_bias else ())}
        return found | ({"o_proj"} if self.output_bias else set())

    def weights(self, hidden: int) -> int:
        """Elements of its matrices, likewise."""
        count = (self.qkv_size + self.output_size) * hidden
        if self.latent is None:
            return count
        count += self.gate_size * (self.latent.query_width or hidden) if self.latent.reads_unnormed else 0
        return count + self.latent.inner_weights(self.heads, hidden)
