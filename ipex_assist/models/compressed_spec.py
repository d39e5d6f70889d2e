"""Attention over keys that are values, and entries of several tokens each, as plain data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ipex_assist.models.attention_spec import LatentSpec
from ipex_assist.models.ranges import check_ranges

# The least and the largest that each number may be, by Hugging Face's names.
COMPRESSED_RANGES: dict[str, tuple[str, tuple[float, float]]] = {
    "o_groups": ("groups", (1, 1 << 12)),
    "o_lora_rank": ("value_dim", (1, 1 << 16)),
    "compress_rates": ("rate", (0, 128)),
}


@dataclass(frozen=True)
class CompressedSpec(LatentSpec):
    """Attention over one key a token for all heads, which is its value as well, and over entries (DeepSeek-V4).

    A row gives one key, of which the first `rope_dim` values are rotated after its norm; queries are made as those of
    latent attention, and each head's passes a norm without a weight. As keys that are rotated are values, what a head
    attended to is rotated back by the row's own position. Then each of `groups` of neighbouring heads passes a linear
    of its own to `value_dim` columns, and the output projection reads all of these.

    A row sees the keys of its window, and beside them, of `rate` tokens each, entries of all before it: of the windows
    of `rate` positions that end at its own position at the latest. Of the tokens of such a window, with kv_j and gate_j
    made of the layer's input, an entry is the norm of Σ softmax_j(gate_j + bias_j) · kv_j, column by column, rotated as
    the key of the window's first position would be. With `overlap` both have two halves, and an entry is of the first
    half of the window before and the second of its own (CSA), else of its own window alone (HCA). An indexer's keys are
    such entries, too, and a row attends to the best `top_k` entries; without one, to all.

    rank: of the key. nope_dim: rank - rope_dim. Raises ConfigError for a value out of COMPRESSED_RANGES.
    """

    groups: int = 1
    rate: int = 0  # tokens of an entry; 0: there are none
    overlap: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        check_ranges(self, COMPRESSED_RANGES)
        assert self.nope_dim == self.rank - self.rope_dim, "a key of other parts"
        assert self.query_rank is not None, "queries without a row of their own"
        assert self.rate or not (self.overlap or self.indexer), "parts of entries that are not there"

    @property
    def head_dim(self) -> int:
        """Values of the key."""
        return self.rank

    @property
    def compressed(self) -> tuple[int, int, int]:
        """See LatentSpec."""
        return self.groups, self.rate, self.parts

    @property
    def parts(self) -> int:
        """Of what an entry is made of: halves, or the whole."""
        return 2 if self.overlap else 1

    @property
    def beside(self) -> int:
        """Values of a row that entries are made of, those of the indexer's included."""
        return 2 * self.parts * (self.rank + self.index_dim) if self.rate else 0

    @property
    def columns(self) -> int:
        """See LatentSpec."""
        assert self.query_rank is not None
        return self.query_rank + self.rank + self.beside + (self.indexer.heads if self.indexer else 0)

    @property
    def kept_beside(self) -> int:
        """See LatentSpec: what entries are made of, and, a part of them, entries."""
        return self.beside + (-(-(self.rank + self.index_dim) // self.rate) if self.rate else 0)

    def output_size(self, heads: int) -> int:
        """See LatentSpec."""
        return self.groups * self.value_dim

    biased_inputs: ClassVar[tuple[str, ...]] = ("q_a_proj", "kv_a_proj")
    biased: ClassVar[tuple[str, ...]] = ()
    stacked: ClassVar[dict[str, tuple[str, ...]]] = {
        "latent_in": biased_inputs,
        "query": ("q_b_proj",),
        "index_in": ("index_weights_proj",),
        "entry_in": ("entry_kv_proj", "entry_gate_proj"),
        "index_entry_in": ("index_entry_kv_proj", "index_entry_gate_proj"),
    }

    def inner_weights(self, heads: int, hidden: int) -> int:
        """See LatentSpec."""
        assert self.query_rank is not None
        index = self.indexer.heads * self.indexer.dim if self.indexer else 0
        return self.query_rank * (heads * self.rank + index) + self.value_dim * heads * self.rank

    def shapes(self, heads: int, hidden: int) -> dict[str, tuple[int, ...]]:
        """See LatentSpec."""
        assert self.query_rank is not None
        made: dict[str, tuple[int, ...]] = {
            "q_a_proj": (self.query_rank, hidden),
            "q_a_norm": (self.query_rank,),
            "q_b_proj": (heads * self.rank, self.query_rank),
            "kv_a_proj": (self.rank, hidden),
            "kv_a_norm": (self.rank,),
            "o_a_proj": (self.groups * self.value_dim, heads * self.rank // self.groups),
            "o_proj": (hidden, self.groups * self.value_dim),
        }
        widths = {"": self.rank, **({"index_": self.index_dim} if self.indexer is not None else {})}
        for place, width in widths.items() if self.rate else ():
            names = f"{place}entry_kv_proj", f"{place}entry_gate_proj"
            made |= dict.fromkeys(names, (self.parts * width, hidden))
            made[f"{place or 'entry_'}bias"] = (self.rate * self.parts * width,)
        made |= {"entry_norm": (self.rank,)} if self.rate else {}
        if self.indexer is not None:
            made["index_k_norm"] = (self.index_dim,)
            made["index_q_proj"] = (self.indexer.heads * self.indexer.dim, self.query_rank)
            made["index_weights_proj"] = (self.indexer.heads, hidden)
        return made
