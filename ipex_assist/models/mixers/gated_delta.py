"""Gated DeltaNet (Yang et al. 2024, arXiv:2412.06464)."""

from __future__ import annotations

from ipex_assist.models.mixers.mixer_kind import MixerNumbers, ScanningKind


class _GatedDelta(ScanningKind):
    is_delta = True

    def input_parts(self, spec: MixerNumbers) -> dict[str, int]:
        parts = super().input_parts(spec)
        gates = parts.pop("z_in")
        return {**parts, "b_in": spec.heads, "z_in": gates}


GATED_DELTA = _GatedDelta()
