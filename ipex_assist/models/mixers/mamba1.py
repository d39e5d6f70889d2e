"""Mamba-1 (Gu and Dao 2023, arXiv:2312.00752, algorithm 2)."""

from __future__ import annotations

from ipex_assist.models.mixers.mixer_kind import MixerKind, MixerNumbers

# The norm of each part that is made of convolved values.
LOW_NORMS = {"a_low_in": "a_low_norm", "k_in": "k_in_norm", "q_in": "q_in_norm"}


class _Mamba1(MixerKind):
    def check(self, spec: MixerNumbers) -> None:
        assert (spec.heads, spec.key_heads) == (1, 1), "heads of channels"
        assert spec.gate_rank, "steps without a rank"

    def input_parts(self, spec: MixerNumbers) -> dict[str, int]:
        return {"v_in": spec.value_size, "z_in": spec.value_size}

    def gate_parts(self, spec: MixerNumbers) -> dict[str, int]:
        return {"a_in": spec.value_size}

    def low_parts(self, spec: MixerNumbers) -> dict[str, int]:
        return {"a_low_in": spec.gate_rank, "k_in": spec.key_size, "q_in": spec.key_size}

    def vectors(self, spec: MixerNumbers) -> dict[str, int]:
        found = super().vectors(spec)
        found |= {"a_log": spec.key_size * spec.value_size, "dt_bias": spec.value_size, "skip": spec.value_size}
        weighted = self.low_parts(spec) if spec.selection_norm == "weighted" else {}
        return found | {LOW_NORMS[name]: size for name, size in weighted.items()}


MAMBA1 = _Mamba1()
