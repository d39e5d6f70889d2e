"""Mixers that keep a state of fixed size for each sequence, as plain data."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from ipex_assist.models.config import ConfigError
from ipex_assist.models.mixers import MIXERS
from ipex_assist.models.mixers.mixer_kind import MixerKind
from ipex_assist.models.ngram_spec import NgramSpec
from ipex_assist.models.ranges import check_ranges

SelectionNorm = Literal["unweighted", "weighted"]

NGRAM_TABLE = "ngram_embed"  # our name of it; each part has a number behind it

# The least and the largest that each number may be, by Hugging Face's names, and our shorter ones.
RECURRENT_RANGES: dict[str, tuple[str, tuple[float, float]]] = {
    "linear_num_value_heads": ("heads", (1, 4096)),
    "linear_num_key_heads": ("key_heads", (1, 4096)),
    "linear_key_head_dim": ("key_dim", (1, 1 << 20)),
    "linear_value_head_dim": ("value_dim", (1, 1 << 20)),
    "linear_conv_kernel_dim": ("conv_kernel", (1, 16)),
    "beta_scale": ("beta_scale", (1e-3, 1e3)),
    "gate_rank": ("gate_rank", (0, 1 << 20)),
    "mixer_norm_eps": ("norm_eps", (1e-30, 0.1)),
    "kda_lower_bound": ("decay_bound", (-80, -1e-6)),
}


@dataclass(frozen=True)
class RecurrentSpec:
    """A mixer that keeps a state of fixed size for each sequence instead of keys and values.

    Rows first pass a causal convolution over the last `conv_kernel` of them (each channel by itself), then, token by
    token and head by head, with the state S (key_dim, value_dim):

    - gated_delta (Gated DeltaNet, Yang et al. 2024, arXiv:2412.06464): S ← decay·S; S ← S + k ⊗ beta·(v - k·S);
      out = q·S, with q and k of unit length, decay = exp(-exp(A_log)·softplus(a + dt_bias)) and beta =
      beta_scale·sigmoid(b). A norm of each head follows, then silu of the output gate z.
    - mamba2 (Dao and Gu 2024, arXiv:2405.21060): S ← decay·S + B ⊗ dt·x; out = C·S + skip·x, with C, B and x in the
      places of q, k and v, and groups that share B and C as key heads. silu of the gate follows, then a norm of each of
      `norm_groups`.
    - short_conv (LFM2): no state beside the rows of the convolution: C · conv(B · x).
    - kimi_delta (Kimi Linear 2025, arXiv:2510.26692, equation 1): as gated_delta, with a decay for each channel of a
      head's keys, exp(-exp(A_log)·softplus(a + dt_bias)), and a sigmoid of the output gate. a and z are made of rows of
      `gate_rank` each, which are made of the layer's input, or without a rank of that input itself. With a
      `decay_bound` (Ling 3), decays are exp(decay_bound·sigmoid(exp(A_log)·(a + dt_bias))).

    - mamba1 (Gu and Dao 2023, arXiv:2312.00752, algorithm 2), all of whose channels are one head: as mamba2, with a dt
      for each channel, and for each element of the state its own decay exp(dt·A). B, C and a row of `gate_rank`, of
      which dt is made, are made of the convolved x; `selection_norm` says what norm each of the three passes, if any
      (weighted: Jamba, arXiv:2403.19887; unweighted: Falcon Mamba, arXiv:2410.05355).
    - rg_lru (Griffin, De et al. 2024, arXiv:2402.19427, section 2.4), each of whose channels has a state of one number:
      h ← decay·h + √(1 - decay²)·sigmoid(b)·x, decay = exp(-8·softplus(a_param)·sigmoid(a)); tanh GELU of the gate z
      multiplies it. a and b are made of the convolved x, without silu, head by head.

    - ngram_rows (Qwen4), a layer by itself: of a token's embeddings (NgramSpec), `gate_rank` columns, come a value
      v and a key k_i for each residual stream s_i, of which there are `heads`. With all norms of a stream, s_i gets
      g_i v and what a convolution over positions makes of norm(g_i v), where
      g_i = sigmoid(±√|norm(k_i) · norm(s_i) / √hidden|).

    Raises ConfigError for a value out of RECURRENT_RANGES, and for values that cannot go together.
    """

    kind: str  # of MIXERS
    heads: int
    key_heads: int
    key_dim: int
    value_dim: int
    conv_kernel: int
    conv_bias: bool = False
    input_bias: bool = False
    output_bias: bool = False
    norm_groups: int = 0  # mamba2: 0 where there is no norm
    gate_rank: int = 0  # kimi_delta (0: there is none), mamba1; rg_lru: value_dim
    selection_norm: SelectionNorm | None = None  # mamba1
    sigmoid_gate: bool = False  # gated_delta: the output gate is a sigmoid, too
    step_limit: tuple[float, float] = (0.0, math.inf)  # mamba2: of dt
    beta_scale: float = 1.0  # gated_delta, kimi_delta: of the sigmoid of b
    norm_eps: float | None = None  # of its norms; the model's where None
    decay_bound: float | None = None  # kimi_delta: what logarithms of decays are above, below 0; None: no bound
    hashes: NgramSpec | None = None  # ngram_rows

    def __post_init__(self) -> None:
        if self.kind not in MIXERS:
            raise ConfigError("mixer", self.kind, f"one of {', '.join(MIXERS)}")
        check_ranges(self, RECURRENT_RANGES)
        self.made_of.check(self)
        assert (self.kind == "ngram_rows") == (self.hashes is not None), "n-grams without their numbers"
        assert not self.sigmoid_gate or self.kind == "gated_delta", "a gate of another kind"
        if self.heads % self.key_heads:
            raise ConfigError("linear_num_key_heads", self.key_heads, f"a divisor of the {self.heads} value heads")
        if self.norm_groups and self.value_size % self.norm_groups:
            raise ConfigError("n_groups", self.norm_groups, f"a divisor of {self.value_size}")
        low, high = self.step_limit
        if not 0 <= low <= high:
            raise ConfigError("time_step_limit", list(self.step_limit), "two numbers from 0 on, the lower one first")

    @property
    def made_of(self) -> MixerKind:
        """What its kind is made of."""
        return MIXERS[self.kind]

    @property
    def scans(self) -> bool:
        """Whether it has a state beside the rows of its convolution."""
        return self.made_of.scans

    @property
    def is_delta(self) -> bool:
        """Whether values are corrected by what the state recalls."""
        return self.made_of.is_delta

    @property
    def key_size(self) -> int:
        """Columns of the queries of a row, and of its keys."""
        return self.key_heads * self.key_dim

    @property
    def value_size(self) -> int:
        """Columns of the values of a row, and of what it gives."""
        return self.heads * self.value_dim

    @property
    def norm_size(self) -> int:
        """Elements of the weight of its norm; 0 where it has none."""
        return self.value_dim if self.is_delta else self.value_size if self.norm_groups else 0

    @property
    def state_bytes(self) -> int:
        """Of the state of one sequence, in fp32, without the last rows that are kept beside it."""
        return 4 * self.value_size * self.key_dim if self.scans else 0

    @property
    def input_parts(self) -> dict[str, int]:
        """What its input linear gives: our names of the parts, and their columns."""
        return self.made_of.input_parts(self)

    @property
    def gate_parts(self) -> dict[str, int]:
        """What is made of those of a low rank: our names, and their columns; empty in most kinds."""
        return self.made_of.gate_parts(self)

    @property
    def low_parts(self) -> dict[str, int]:
        """What is made of convolved values: our names, and their columns; empty in most kinds."""
        return self.made_of.low_parts(self)

    @property
    def all_parts(self) -> dict[str, int]:
        """What its linears before the scan give, all together."""
        return {**self.input_parts, **self.low_parts, **self.gate_parts}

    @property
    def vectors(self) -> dict[str, int]:
        """Its weights that are no matrices: our names, and how many elements they have."""
        found = self.made_of.vectors(self)
        return {**found, "gated_norm": self.norm_size} if self.norm_size else found

    def shapes(self, hidden: int) -> dict[str, tuple[int, ...]]:
        """Of its weights by our names, in a layer of rows of `hidden` columns."""
        hidden = hidden if self.hashes is None else self.gate_rank
        widths = ((self.input_parts, hidden), (self.low_parts, self.value_size), (self.gate_parts, self.gate_rank))
        matrices = {name: (columns, width) for parts, width in widths for name, columns in parts.items()}
        vectors = {name: (size,) for name, size in self.vectors.items()}
        if self.hashes is not None:
            columns = self.gate_rank // self.hashes.tables
            tables = {f"{NGRAM_TABLE}.{i}": (rows, columns) for i, rows in enumerate(self.hashes.stored_rows)}
            return {**matrices, **vectors, **tables}
        return {**matrices, "mixer_out": (hidden, self.value_size), **vectors}

    @property
    def stacked(self) -> dict[str, tuple[str, ...]]:
        """Linears of several of its weights, which read the same rows, and these in their order."""
        return {"mixer_in": tuple(self.input_parts), "mixer_low": tuple(self.low_parts)}

    @property
    def biased(self) -> set[str]:
        """Of its weights, those that have a bias; of convolutions `conv_bias` says so."""
        found = {*(self.input_parts if self.input_bias else ()), *(("mixer_out",) if self.output_bias else ())}
        return found | (set(self.gate_parts) if self.made_of.gates_biased else set())

    def weights(self, hidden: int) -> int:
        """Elements of its matrices, likewise."""
        shapes = self.shapes(hidden).items()
        return sum(math.prod(shape) for name, shape in shapes if len(shape) == 2 and not name.startswith(NGRAM_TABLE))
