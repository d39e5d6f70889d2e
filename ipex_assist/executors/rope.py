"""Rotary position angles, with the rules by which models stretch their context."""

from __future__ import annotations

import math
import threading

import torch

from ipex_assist.models.spec import DecoderSpec, Rope

BLOCK = 1024  # positions whose angles are computed at once


class RotaryTable:
    """cos and sin of the positions that sequences reach, each computed once; threads may use it together.

    A position has the values of each of the spec's rules (`spec.ropes`), one behind the other. Source of the rules:
    transformers.modeling_rope_utils (linear: kaiokendev; dynamic NTK: bloc97 and emozilla; yarn: Peng et al. 2023,
    arXiv:2309.00071; llama3: Llama 3.1's reference code; longrope: Ding et al. 2024, arXiv:2402.13753).
    """

    def __init__(self, spec: DecoderSpec, dtype: torch.dtype) -> None:
        assert spec.ropes
        self.dtype, self.dim = dtype, spec.rotary_size
        self.rules = [_Rule(rope, self.dim, spec.max_position_embeddings) for rope in spec.ropes]
        self._growing = threading.Lock()
        # (positions, 1, rules · rotary_size) each, contiguous. Replaced as a pair and never changed: a pass keeps what
        # it took.
        self.tables = self._block(0)

    def reach(self, length: int) -> None:
        """Have at least the first `length` positions."""
        with self._growing:
            known = len(self.tables[0])
            if length <= known:
                return
            # By blocks, so that no position's bits depend on how far the table reaches; twice as many at least, as
            # growing copies it.
            blocks = [self._block(start) for start in range(known, max(length, 2 * known), BLOCK)]
            cos, sin = zip(self.tables, *blocks, strict=True)
            self.tables = torch.cat(cos), torch.cat(sin)

    def _block(self, start: int) -> tuple[torch.Tensor, torch.Tensor]:
        positions = torch.arange(start, start + BLOCK, dtype=torch.float32)
        return self._tables([rule.angles(positions) for rule in self.rules])

    def stretches(self, prompt_length: int) -> bool:
        """Whether rows of a prompt of this length turn otherwise than those of decode steps."""
        return any(rule.stretches(prompt_length) for rule in self.rules)

    def rows(self, start: int, count: int, prompt_length: int | None) -> tuple[torch.Tensor, torch.Tensor]:
        """(cos, sin) of positions start…start+count-1, each (count, 1, rules · rotary_size), for `rotate`.

        `prompt_length` is the length of the text's prompt, None where it has none: under the dynamic rule and longrope
        every row of a prompt longer than the trained length turns by the frequencies of the whole prompt, and rows
        behind it do not.
        """
        cos, sin = self.tables
        if prompt_length is None or start >= prompt_length or not self.stretches(prompt_length):
            return cos[start : start + count], sin[start : start + count]
        end = min(start + count, prompt_length)
        positions = torch.arange(start, end, dtype=torch.float32)
        prompt_cos, prompt_sin = self._tables([rule.prompt_angles(positions, prompt_length) for rule in self.rules])
        behind = slice(end, start + count)
        return torch.cat((prompt_cos, cos[behind])), torch.cat((prompt_sin, sin[behind]))

    def _tables(self, angles: list[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
        cosines, sines = [], []
        for rule, angle in zip(self.rules, angles, strict=True):
            cos, sin = angle.cos() * rule.attention_factor, angle.sin() * rule.attention_factor
            # The sign of rotate_half sits in the table, so that a rotation is x·cos + roll(x)·sin.
            cosines += [cos, cos]
            sines += [-sin, sin]
        cos, sin = torch.cat(cosines, -1), torch.cat(sines, -1)
        return cos[:, None, :].to(self.dtype), sin[:, None, :].to(self.dtype)


class _Rule:
    """The angles of one rope over `dim` values of a head."""

    def __init__(self, rope: Rope, dim: int, context: int) -> None:
        self.rope, self.dim = rope, dim
        self.trained_length = rope.scaling["original_max_position_embeddings"] if rope.kind == "longrope" else context
        self.attention_factor = 1.0
        self._inv_freq = self._inverse_frequencies()

    def stretches(self, prompt_length: int) -> bool:
        return self.rope.by_length and prompt_length > self.trained_length

    def angles(self, positions: torch.Tensor) -> torch.Tensor:
        """Of decode steps at these consecutive positions, (positions, dim / 2)."""
        angles = positions[:, None] * self._inv_freq[None, :]
        beyond = positions[max(0, int(self.trained_length - positions[0])) :]
        if self.rope.by_length and len(beyond):
            # A decode step at position p sees a sequence of p + 1 tokens, and turns by that length.
            angles[-len(beyond) :] = beyond[:, None] * self._stretched(beyond + 1)
        return angles

    def prompt_angles(self, positions: torch.Tensor, prompt_length: int) -> torch.Tensor:
        """Of rows of a prompt of this length."""
        if not self.stretches(prompt_length):
            return self.angles(positions)
        return positions[:, None] * self._stretched(torch.tensor([float(prompt_length)]))

    def _stretched(self, lengths: torch.Tensor) -> torch.Tensor:
        """Inverse frequencies for sequences of `lengths` tokens beyond the trained length: (len(lengths), dim / 2)."""
        if self.rope.kind == "longrope":
            return self._longrope("long_factor").expand(len(lengths), -1)
        factor = self.rope.scaling["factor"]
        stretch = (factor * lengths / self.trained_length) - (factor - 1)
        bases = self.rope.theta * stretch ** (self.dim / (self.dim - 2))
        return 1.0 / (bases[:, None] ** self._exponents())

    def _exponents(self) -> torch.Tensor:
        return torch.arange(0, self.dim, 2, dtype=torch.int64).float() / self.dim

    def _inverse_frequencies(self) -> torch.Tensor:
        plain = 1.0 / (self.rope.theta ** self._exponents())
        if self.rope.kind == "linear":
            return plain / self.rope.scaling["factor"]
        if self.rope.kind == "llama3":
            return self._llama3(plain)
        if self.rope.kind == "yarn":
            return self._yarn(plain)
        if self.rope.kind == "longrope":
            self.attention_factor = self._longrope_attention_factor()
            return self._longrope("short_factor")
        return plain

    def _longrope(self, factors: str) -> torch.Tensor:
        return 1.0 / (torch.tensor(self.rope.scaling[factors]) * self.rope.theta ** self._exponents())

    def _longrope_attention_factor(self) -> float:
        given, factor = self.rope.scaling.get("attention_factor"), self.rope.scaling["factor"]
        if given is not None:
            return float(given)
        return 1.0 if factor <= 1 else math.sqrt(1 + math.log(factor) / math.log(self.trained_length))

    def _llama3(self, plain: torch.Tensor) -> torch.Tensor:
        scaling = self.rope.scaling
        factor, trained = scaling["factor"], scaling["original_max_position_embeddings"]
        low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
        wavelength = 2 * math.pi / plain
        smooth = (trained / wavelength - low) / (high - low)
        blended = (1 - smooth) * plain / factor + smooth * plain
        scaled = torch.where(wavelength > trained / low, plain / factor, plain)
        between = (wavelength >= trained / high) & (wavelength <= trained / low)
        return torch.where(between, blended, scaled)

    def _yarn(self, plain: torch.Tensor) -> torch.Tensor:
        scaling = self.rope.scaling
        trained = scaling.get("original_max_position_embeddings") or self.trained_length
        factor = scaling["factor"]
        self.attention_factor = _yarn_attention_factor(scaling, factor)

        def dimension(rotations: float) -> float:
            return self.dim * math.log(trained / (rotations * 2 * math.pi)) / (2 * math.log(self.rope.theta))

        low = dimension(scaling.get("beta_fast") or 32)
        high = dimension(scaling.get("beta_slow") or 1)
        if scaling.get("truncate", True):
            low, high = math.floor(low), math.ceil(high)
        low, high = max(low, 0), min(high, self.dim - 1)
        ramp = (torch.arange(self.dim // 2, dtype=torch.float32) - low) / ((high - low) or 0.001)
        interpolated = ramp.clamp(0, 1)
        return plain / factor * interpolated + plain * (1 - interpolated)


def _yarn_attention_factor(scaling: dict[str, float], factor: float) -> float:
    def mscale(weight: float = 1.0) -> float:
        return 1.0 if factor <= 1 else 0.1 * weight * math.log(factor) + 1.0

    if scaling.get("attention_factor") is not None:
        return float(scaling["attention_factor"])
    if scaling.get("mscale") and scaling.get("mscale_all_dim"):
        return mscale(scaling["mscale"]) / mscale(scaling["mscale_all_dim"])
    return mscale()


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Turn the halves of each head against each other: x (rows, heads, head_dim), as Llama's rotate_half does.

    Where the tables are narrower than heads, the values behind them stay.
    """
    turned = cos.shape[-1]
    if turned < x.shape[-1]:
        return torch.cat((rotate(x[..., :turned], cos, sin), x[..., turned:]), -1)
    return torch.addcmul(x * cos, torch.roll(x, turned // 2, -1), sin)
