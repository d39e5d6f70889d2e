"""Mamba-2 (Dao and Gu 2024, arXiv:2405.21060)."""

from __future__ import annotations

from ipex_assist.models.mixers.mixer_kind import MixerNumbers, ScanningKind


class _Mamba2(ScanningKind):
    def vectors(self, spec: MixerNumbers) -> dict[str, int]:
        return {**super().vectors(spec), "skip": spec.heads}


MAMBA2 = _Mamba2()
