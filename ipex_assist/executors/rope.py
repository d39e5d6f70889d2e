"""Rotary position angles, with the rules by which models stretch their context. Never imports torch."""

from __future__ import annotations

import math
import threading
from functools import cached_property
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from ipex_assist.env.errors import IpexAssistError
from ipex_assist.models.rope_spec import Rope
from ipex_assist.models.spec import DecoderSpec

Floats: TypeAlias = NDArray[np.float32]

BLOCK = 1024  # positions whose angles are computed at once


class RotaryTable:
    """cos and sin of the positions that sequences reach, each computed once; threads may use it together.

    A position has the values of each of the spec's tables (`spec.rotary_tables`), side by side. Source of the rules:
    transformers.modeling_rope_utils (linear: kaiokendev; dynamic NTK: bloc97 and emozilla; yarn: Peng et al. 2023,
    arXiv:2309.00071; llama3: Llama 3.1's reference code; longrope: Ding et al. 2024, arXiv:2402.13753).
    Angles are fp32, as they are there; powers, cosines and sines are computed in fp64 and rounded, so that no library's
    or processor's own way of computing them shows.
    """

    def __init__(self, spec: DecoderSpec) -> None:
        assert spec.rotary_tables
        context = spec.max_position_embeddings
        self.rules = [_Rule(spec.ropes[rope], size, context) for rope, size in spec.rotary_tables]
        self._growing = threading.Lock()
        # (positions, 1, rotary_width) each, contiguous. Replaced as a pair and never changed: a pass keeps what
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
            self.tables = np.concatenate(cos), np.concatenate(sin)

    def _block(self, start: int) -> tuple[Floats, Floats]:
        positions = np.arange(start, start + BLOCK, dtype=np.float32)
        return self._tables([rule.angles(positions) for rule in self.rules])

    def stretches(self, prompt_length: int) -> bool:
        """Whether rows of a prompt of this length are rotated otherwise than those of decode steps."""
        return any(rule.stretches(prompt_length) for rule in self.rules)

    def rows(self, start: int, count: int, prompt_length: int | None) -> tuple[Floats, Floats]:
        """(cos, sin) of positions start…start+count-1, each (count, 1, rotary_width), for torch_rope.py.

        `prompt_length` is the length of the text's prompt, None where it has none: under the dynamic rule and longrope
        every row of a prompt longer than the trained length is rotated by the frequencies of the whole prompt, and
        rows after it are not.
        """
        cos, sin = self.tables
        if prompt_length is None or start >= prompt_length or not self.stretches(prompt_length):
            return cos[start : start + count], sin[start : start + count]
        end = min(start + count, prompt_length)
        positions = np.arange(start, end, dtype=np.float32)
        prompt_cos, prompt_sin = self._tables([rule.prompt_angles(positions, prompt_length) for rule in self.rules])
        after = slice(end, start + count)
        return np.concatenate((prompt_cos, cos[after])), np.concatenate((prompt_sin, sin[after]))

    def at(self, positions: NDArray[np.int64]) -> tuple[Floats, Floats]:
        """(cos, sin) of rows at positions (rows, 3) on three axes: each column by that of its section (M-RoPE)."""
        tables, columns = self.tables, np.arange(len(self._axes))
        rows = positions[:, self._axes]
        cos, sin = (np.ascontiguousarray(table[rows, 0, columns])[:, None, :] for table in tables)
        return cos, sin

    @cached_property
    def _axes(self) -> NDArray[np.int64]:
        return np.concatenate([rule.axes() for rule in self.rules])

    def _tables(self, angles: list[Floats]) -> tuple[Floats, Floats]:
        cosines, sines = [], []
        for rule, angle in zip(self.rules, angles, strict=True):
            exact, factor = angle.astype(np.float64), np.float32(rule.attention_factor)
            cos, sin = (table(exact).astype(np.float32) * factor for table in (np.cos, np.sin))
            # The sign of rotate_half sits in the table, so that a rotation is x·cos + roll(x)·sin.
            cosines += [cos, cos]
            sines += [sin, -sin] if rule.rope.backwards else [-sin, sin]
        return np.concatenate(cosines, -1)[:, None, :], np.concatenate(sines, -1)[:, None, :]


class _Rule:
    """The angles of one rope over `dim` values of a head."""

    def __init__(self, rope: Rope, dim: int, context: int) -> None:
        self.rope, self.dim = rope, dim
        self.trained_length = rope.scaling["original_max_position_embeddings"] if rope.kind == "longrope" else context
        self.attention_factor = 1.0
        logs = np.array(rope.scaling.get("frequency_logs", 0), np.float32)
        self._inv_freq = self._inverse_frequencies() * np.exp(logs)

    def axes(self) -> NDArray[np.int64]:
        """By which of three positions each of `dim` columns rotates; without sections by the first. IpexAssistError."""
        sections, pairs = self.rope.scaling.get("mrope_section"), self.dim // 2
        axes = np.zeros(pairs, np.int64)
        if sections is not None:
            if len(sections) != 3 or sum(sections) != pairs or min(sections) < 0:
                raise IpexAssistError(f"mrope_section {list(sections)} of {pairs} pairs that rotate")
            if self.rope.scaling["mrope_interleaved"]:
                for axis in (1, 2):
                    axes[axis : 3 * sections[axis] : 3] = axis
            else:
                axes = np.repeat(np.arange(3), sections)
        return np.concatenate((axes, axes))

    def stretches(self, prompt_length: int) -> bool:
        return self.rope.by_length and prompt_length > self.trained_length

    def angles(self, positions: Floats) -> Floats:
        """Of decode steps at these consecutive positions, (positions, dim / 2)."""
        angles = positions[:, None] * self._inv_freq[None, :]
        beyond = positions[max(0, int(self.trained_length - positions[0])) :]
        if self.rope.by_length and len(beyond):
            # A decode step at position p sees a sequence of p + 1 tokens, and is rotated by that length.
            angles[-len(beyond) :] = beyond[:, None] * self._stretched(beyond + 1)
        return angles

    def prompt_angles(self, positions: Floats, prompt_length: int) -> Floats:
        """Of rows of a prompt of this length."""
        if not self.stretches(prompt_length):
            return self.angles(positions)
        return positions[:, None] * self._stretched(np.array([prompt_length], np.float32))

    def _stretched(self, lengths: Floats) -> Floats:
        """Inverse frequencies for sequences of `lengths` tokens beyond the trained length: (lengths or 1, dim / 2)."""
        if self.rope.kind == "longrope":
            return self._longrope("long_factor")[None, :]
        factor = self.rope.scaling["factor"]
        stretch = (factor * lengths.astype(np.float64) / self.trained_length) - (factor - 1)
        return np.float32(1) / self._powers(self.rope.theta * stretch ** (self.dim / (self.dim - 2)))

    def _powers(self, bases: NDArray[np.float64]) -> Floats:
        """base^(2i ÷ dim) for each base: (…, dim / 2)."""
        exponents = np.arange(0, self.dim, 2).astype(np.float32) / np.float32(self.dim)
        return (bases[..., None] ** exponents.astype(np.float64)).astype(np.float32)

    def _inverse_frequencies(self) -> Floats:
        if self.rope.kind == "longrope":
            self.attention_factor = self._longrope_attention_factor()
            return self._longrope("short_factor")
        plain: Floats = np.float32(1) / self._powers(np.array(self.rope.theta, np.float64))
        if self.rope.kind == "proportional":  # the first pairs of a head as if all were rotated, the others not at all
            rotated = int(self.rope.scaling["partial_rotary_factor"] * self.dim // 2)
            plain[rotated:] = 0
        if self.rope.kind in ("linear", "proportional"):
            return plain / np.float32(self.rope.scaling["factor"])
        if self.rope.kind == "llama3":
            return self._llama3(plain)
        if self.rope.kind == "yarn":
            return self._yarn(plain)
        return plain

    def _longrope(self, factors: str) -> Floats:
        powers = self._powers(np.array(self.rope.theta, np.float64))
        return np.float32(1) / (np.array(self.rope.scaling[factors], np.float32) * powers)

    def _longrope_attention_factor(self) -> float:
        given, factor = self.rope.scaling.get("attention_factor"), self.rope.scaling["factor"]
        if given is not None:
            return float(given)
        return 1.0 if factor <= 1 else math.sqrt(1 + math.log(factor) / math.log(self.trained_length))

    def _llama3(self, plain: Floats) -> Floats:
        scaling = self.rope.scaling
        factor, trained = scaling["factor"], scaling["original_max_position_embeddings"]
        low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
        wavelength = np.float32(2 * math.pi) / plain
        smooth = (trained / wavelength - low) / (
            high - low if high > low else 1
        )  # which is 0 where both are one border
        blended = (1 - smooth) * plain / factor + smooth * plain
        scaled = np.where(wavelength > trained / low, plain / factor, plain)
        between = (wavelength >= trained / high) & (wavelength <= trained / low)
        return np.where(between, blended, scaled).astype(np.float32)

    def _yarn(self, plain: Floats) -> Floats:
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
        ramp = (np.arange(self.dim // 2, dtype=np.float32) - low) / ((high - low) or 0.001)
        interpolated = ramp.clip(0, 1)
        return (plain / factor * interpolated + plain * (1 - interpolated)).astype(np.float32)


def _yarn_attention_factor(scaling: dict[str, float], factor: float) -> float:
    def mscale(weight: float = 1.0) -> float:
        return 1.0 if factor <= 1 else 0.1 * weight * math.log(factor) + 1.0

    if scaling.get("attention_factor") is not None:
        return float(scaling["attention_factor"])
    if scaling.get("mscale") and scaling.get("mscale_all_dim"):
        return mscale(scaling["mscale"]) / mscale(scaling["mscale_all_dim"])
    return mscale()
