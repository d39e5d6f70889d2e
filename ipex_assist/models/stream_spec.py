"""Residual streams of several rows side by side, as plain data."""

from __future__ import annotations

from dataclasses import dataclass

from ipex_assist.models.config import ConfigError
from ipex_assist.models.ranges import check_ranges

# The least and the largest that each number may be, by Hugging Face's names.
STREAM_RANGES: dict[str, tuple[str, tuple[float, float]]] = {
    "hc_mult": ("count", (2, 8)),
    "hc_sinkhorn_iters": ("sinkhorn_steps", (0, 1000)),
    "hc_eps": ("eps", (0, 0.1)),
    "hc_magnitude": ("gain", (1e-6, 1e6)),
    "hc_lowrank": ("gate_rank", (0, 1 << 20)),
}
ALTUP_RANGES: dict[str, tuple[str, tuple[float, float]]] = {
    "altup_num_inputs": ("count", (2, 8)),
    "altup_active_idx": ("active", (0, 7)),
}
ALTUP_PROJECTIONS = ("altup_in_proj", "altup_out_proj")
ALTUP_VECTORS = ("altup_router", "altup_predict", "altup_correct", "altup_scale")
# Our names of their weights: of the projection, with _base and _scale those of what is added and multiplied; those of
# the head are outside of layers.
STREAMS = ("attention_hc", "mlp_hc")
HEAD_STREAMS = "head_hc"
HEAD_GATE = ("head_gate_down_proj", "head_gate_up_proj")  # of gated residuals, beside those of layers


@dataclass(frozen=True)
class StreamSpec:
    """Hyper-connections (Zhu et al. 2024, arXiv:2409.19606): `count` residual streams, each of the model's width.

    They begin as the token's embedding. Of a row's streams s (count, hidden), z = scale · (W s / rms(s)) + base are
    numbers of three kinds, each with a scale: attention or MLP reads the norm of Σ (sigmoid(z_i) + eps) s_i; what it
    gives, d, is added to stream i as (gain · sigmoid(z_count+i) + gain_eps) · d. The streams stay as they are, or, with
    `sinkhorn_steps` (DeepSeek-V4), become Σ_j C_ji s_j before that, where C is the softmax of the other numbers, row by
    row, whose columns and rows are divided by their sums in turn. The final norm reads the streams likewise, by a
    projection of its own. All of it in fp32.

    With a `gate_rank` (gated residuals, Qwen4) each stream passes a part of a norm as wide as all of them, and of the
    normed streams y (count, hidden) comes Σ sigmoid(up · silu(down · y / count))_i y_i / count, where `gate_rank`
    columns are between two linears, with no norm behind it: what attention, an MLP or the head reads. What comes of
    that, d, is added to stream i as gain · sigmoid(W_i y / count) d; and streams are not mixed.

    Raises ConfigError for a value out of STREAM_RANGES.
    """

    count: int
    sinkhorn_steps: int = 0
    eps: float = 1e-6
    gain: float = 2.0
    gain_eps: float = 0.0
    averaged: bool = False  # the final norm reads the mean of the streams, without numbers
    gate_rank: int = 0

    def __post_init__(self) -> None:
        check_ranges(self, STREAM_RANGES)
        assert not self.gate_rank or not (self.averaged or self.sinkhorn_steps or self.eps), "gated residuals"

    @property
    def gated(self) -> bool:
        """Whether residuals are gated."""
        return self.gate_rank > 0

    @property
    def numbers(self) -> int:
        """How many a row has before attention and before its MLP."""
        if self.gated:
            return self.count
        return self.count * (2 + self.count if self.sinkhorn_steps else 2)

    def layer_shapes(self, hidden: int) -> dict[str, tuple[int, ...]]:
        """Of its weights in a layer, by our names."""
        kinds = 3 if self.sinkhorn_steps else 2
        return {name: shape for each in STREAMS for name, shape in self._shapes(each, hidden, self.numbers, kinds)}

    def head_shapes(self, hidden: int) -> dict[str, tuple[int, ...]]:
        """Of those before the final norm."""
        if self.gated:
            wide = self.count * hidden
            return dict(zip(HEAD_GATE, ((self.gate_rank, wide), (wide, self.gate_rank)), strict=True))
        return {} if self.averaged else dict(self._shapes(HEAD_STREAMS, hidden, self.count, 1))

    def _shapes(self, name: str, hidden: int, numbers: int, kinds: int) -> list[tuple[str, tuple[int, ...]]]:
        vectors: list[tuple[str, tuple[int, ...]]] = [(f"{name}_base", (numbers,)), (f"{name}_scale", (kinds,))]
        return [(name, (numbers, self.count * hidden)), *([] if self.gated else vectors)]


@dataclass(frozen=True)
class AltUpSpec:
    """AltUp (Baykal et al. 2023, arXiv:2301.13310), as Gemma 3n has it: `count` streams, of which a layer changes one.

    The first is the token's embedding e; the others are projections of it, made as large. Before a layer the numbers
    m = tanh(W norm(s_active)) of a row, (count,), predict s_i ← s_i + Σ_j (P m)_ij s_j. The layer makes y of s_active,
    and with those of y, likewise, each is corrected: s_i ← s_i + (1 + (C m)_i) · (y - s_active). Per-layer embeddings
    then read s_active, times a number for each column where `scaled`, and are added to all but the first. At the end
    the others are projected back, made as large as the first, and their mean with it is what the final norm reads. All
    but these projections is in fp32. Raises ConfigError for a value out of ALTUP_RANGES.
    """

    count: int
    active: int
    scaled: bool = True

    def __post_init__(self) -> None:
        check_ranges(self, ALTUP_RANGES)
        if self.active >= self.count:
            raise ConfigError("altup_active_idx", self.active, f"below {self.count}, the number of streams")

    def layer_shapes(self, hidden: int) -> dict[str, tuple[int, ...]]:
        """Of its weights in a layer, by our names."""
        shapes: dict[str, tuple[int, ...]] = {
            "altup_router_norm": (hidden,),
            "altup_router": (self.count * hidden,),
            "altup_predict": (self.count**3,),
            "altup_correct": (self.count**2,),
        }
        return shapes | ({"altup_scale": (hidden,)} if self.scaled else {})

    @staticmethod
    def outer_shapes(hidden: int) -> dict[str, tuple[int, ...]]:
        """Of those of each stream but the first, "altup.0.altup_in_proj.weight"."""
        return dict.fromkeys(ALTUP_PROJECTIONS, (hidden, hidden))
