"""Kimi Delta Attention (Kimi Linear 2025, arXiv:2510.26692, equation 1)."""

from __future__ import annotations

from ipex_assist.models.mixers.mixer_kind import MixerKind, MixerNumbers, ScanningKind


class _KimiDelta(ScanningKind):
    is_delta = True

    def check(self, spec: MixerNumbers) -> None:
        super().check(spec)
        assert (spec.heads, spec.key_dim) == (spec.key_heads, spec.value_dim), "heads of keys unlike those of values"
        assert spec.gate_rank, "gates without a rank"

    def input_parts(self, spec: MixerNumbers) -> dict[str, int]:
        low = {"a_low_in": spec.gate_rank, "z_low_in": spec.gate_rank}
        return {**MixerKind.input_parts(self, spec), "b_in": spec.heads, **low}

    def gate_parts(self, spec: MixerNumbers) -> dict[str, int]:
        return {"a_in": spec.key_size, "z_in": spec.value_size}

    def vectors(self, spec: MixerNumbers) -> dict[str, int]:
        return {**super().vectors(spec), "dt_bias": spec.key_size}


KIMI_DELTA = _KimiDelta()
