"""What rows of sparse attention attend to, as plain data: positions by an indexer, or blocks."""

from __future__ import annotations

from dataclasses import dataclass

from ipex_assist.models.config import ConfigError
from ipex_assist.models.ranges import check_ranges

# The least and the largest that each number may be, by Hugging Face's names, and our shorter ones.
# Without heads a layer has no indexer of its own.
INDEXER_RANGES: dict[str, tuple[str, tuple[float, float]]] = {
    "index_topk": ("top_k", (1, 1 << 24)),
    "index_n_heads": ("heads", (0, 1 << 12)),
    "index_head_dim": ("dim", (0, 1 << 12)),
    "index_kpool": ("pool", (1, 256)),
}
CHOICE_RANGES: dict[str, tuple[str, tuple[float, float]]] = {
    "index_topk_blocks": ("blocks", (1, 1 << 16)),
    "index_block_size": ("size", (1, 1 << 16)),
    "index_local_blocks": ("local", (1, 1 << 16)),
    "index_head_dim": ("dim", (1, 1 << 12)),
}


@dataclass(frozen=True)
class IndexerSpec:
    """Sparse attention (DeepSeek-V3.2, arXiv:2512.02556, section 2.1): a row attends to `top_k` positions at most.

    They are those up to its own with the highest scores; of equal ones the lower positions. A position has the score
    Σ w_h · relu(q_h · k) over the indexer's heads, where k (dim) is the position's key, the same for all heads, which
    passes a layer norm; and of the row that scores, w (heads) is made of the layer's input, and each q_h (dim) of the
    normalised row that its queries are made of, or, where it `reads_input` (Mistral Large 4), of a layer norm of the
    layer's input. The first values of k and q_h are rotated as the latent's key is.

    pool: as many neighbouring positions share a key (GLM-5.3), Σ softmax(g_j + e_j) k_j over them in each column, with
    a gate g_j (dim) of each position's input, and e (pool, dim) of its place. A row chooses among pools that end up to
    its own position, `top_k` positions in all, and attends to those of the open pool as well. Keys are not rotated.

    means: of QSA (Qwen4), where keys and values are of heads: a pool's key is the mean of its positions', through an
    RMS norm, and rotated as the first of these is; queries, of the layer's input, pass an RMS norm of each head. All w
    are dim ** -0.5.

    heads: 0 where a layer attends to what the last layer before it with an indexer has chosen.
    Raises ConfigError for a value out of INDEXER_RANGES.
    """

    top_k: int
    heads: int = 0
    dim: int = 0
    norm_eps: float = 1e-6  # of the norm of keys, and of that of the input
    reads_input: bool = False
    pool: int = 1
    means: bool = False

    def __post_init__(self) -> None:
        check_ranges(self, INDEXER_RANGES)
        if self.top_k % self.pool:
            raise ConfigError("index_topk", self.top_k, f"a multiple of index_kpool, {self.pool}")
        if bool(self.heads) != bool(self.dim):
            raise ConfigError("index_head_dim", self.dim, f"a width of {self.heads} heads")

    @property
    def kept(self) -> int:
        """Values that are kept of a position: its key, and what its pool's is made of."""
        return self.dim if self.pool == 1 or self.means else 2 * self.dim

    def shapes(self, hidden: int, query_rank: int) -> dict[str, tuple[int, ...]]:
        """Of its weights by our names."""
        if not self.heads:
            return {}
        if self.means:
            made = {"index_q_proj": (self.heads * self.dim, hidden), "index_k_proj": (self.dim, hidden)}
            return made | dict.fromkeys(("index_q_norm", "index_k_norm"), (self.dim,))
        pooled = {"index_gate_proj": (self.dim, hidden), "index_places": (self.pool * self.dim,)}
        return {
            **(pooled if self.pool > 1 else {}),
            "index_q_proj": (self.heads * self.dim, hidden if self.reads_input else query_rank),
            "index_k_proj": (self.dim, hidden),
            "index_weights_proj": (self.heads, hidden),
            "index_k_norm": (self.dim,),
            **({"index_q_norm": (hidden,)} if self.reads_input else {}),
        }


@dataclass(frozen=True)
class BlockChoiceSpec:
    """Sparse attention by blocks (MiniMax-M3): a row attends to `blocks` blocks of `size` positions for each KV head.

    They are its own and those before it, `local` in all, and those of which one position up to the row's has the
    highest score; of equal ones the lower. A score is q_h · k: of the row that scores, q_h (dim) of each KV head, and
    of a position k (dim), both made of the layer's input through an RMS norm each, and rotated as heads are.

    Raises ConfigError for a value out of CHOICE_RANGES.
    """

    blocks: int
    size: int
    local: int
    dim: int

    def __post_init__(self) -> None:
        check_ranges(self, CHOICE_RANGES)
        if self.local > self.blocks:
            raise ConfigError("index_local_blocks", self.local, f"{self.blocks} at most, as many as are chosen")

    def shapes(self, hidden: int, kv_heads: int) -> dict[str, tuple[int, ...]]:
        """Of its weights by our names."""
        made = {"index_q_proj": (kv_heads * self.dim, hidden), "index_k_proj": (self.dim, hidden)}
        return made | dict.fromkeys(("index_q_norm", "index_k_norm"), (self.dim,))
