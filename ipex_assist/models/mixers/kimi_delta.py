"""Kimi Delta Attention (Kimi Linear 2025, arXiv:2510.26692, equation 1)."""

from __future__ import annotations

from ipex_assist.models.mixers.mixer_kind import MixerKind, MixerNumbers, ScanningKind


class _KimiDelta(ScanningKind):
    is_delta = True
    bounds_decays = True

    def check(self, spec: MixerNumbers) -> None:
        super().check(spec)
        assert (spec.heads, spec.key_dim) == (spec.key_heads, spec.value_dim), "heads of keys unlike those of values"

    def input_parts(self, spec: MixerNumbers) -> dict[str, int]:
        convolved, rank = MixerKind.input_parts(self, spec), spec.gate_rank
        if not rank:
            return {**convolved, "a_in": spec.key_size, "b_in": spec.heads, "z_in": spec.value_size}
        return {**convolved, "b_in": spec.heads, "a_low_in": rank, "z_low_in": rank}

    def gate_parts(self, spec: MixerNumbers) -> dict[str, int]:
        return {"a_in": spec.key_size, "z_in": spec.value_size} if spec.gate_rank else {}

    def vectors(self, spec: MixerNumbers) -> dict[str, int]:
        return {**super().vectors(spec), "dt_bias": spec.key_size}


KIMI_DELTA = _KimiDelta()
